package rlock;

/**
 * The comparisons of unsigned numbers in the engine's bytecode, which calls these since its build. HotSpot's compiler C2
 * miscompiles Chicory's, which use {@link Integer#compareUnsigned}, once they are inlined (dylibso/chicory#843). These compute
 * the answer without a comparison: C2 has nothing to recognize in them.
 */
final class Comparisons {
    private Comparisons() {}

    static int I32_LT_U(int a, int b) {
        // The difference of two numbers below 2^32 has their order as its sign.
        return (int) ((a & 0xffffffffL) - (b & 0xffffffffL) >>> 63);
    }

    static int I32_GT_U(int a, int b) {
        return I32_LT_U(b, a);
    }

    static int I32_LE_U(int a, int b) {
        return I32_LT_U(b, a) ^ 1;
    }

    static int I32_GE_U(int a, int b) {
        return I32_LT_U(a, b) ^ 1;
    }

    static int I64_LT_U(long a, long b) {
        // The borrow of a - b: Hacker's Delight, 2-13.
        return (int) ((~a & b | (~a | b) & a - b) >>> 63);
    }

    static int I64_GT_U(long a, long b) {
        return I64_LT_U(b, a);
    }

    static int I64_LE_U(long a, long b) {
        return I64_LT_U(b, a) ^ 1;
    }

    static int I64_GE_U(long a, long b) {
        return I64_LT_U(a, b) ^ 1;
    }
}
