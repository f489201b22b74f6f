package rlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The comparisons in the engine's bytecode. */
@Timeout(120)
class ComparisonsTest {
    private static final long[] EDGES = {0, 1, 2, 0x7fffffffL, 0x80000000L, 0x80000001L, 0xfffffffeL, 0xffffffffL,
        0x100000000L, Long.MAX_VALUE, Long.MIN_VALUE, Long.MIN_VALUE + 1, -2, -1};

    private static int bit(boolean is) {
        return is ? 1 : 0;
    }

    private static void check(long a, long b) {
        var order = Long.compareUnsigned(a, b);
        assertEquals(bit(order < 0), Comparisons.I64_LT_U(a, b));
        assertEquals(bit(order <= 0), Comparisons.I64_LE_U(a, b));
        assertEquals(bit(order > 0), Comparisons.I64_GT_U(a, b));
        assertEquals(bit(order >= 0), Comparisons.I64_GE_U(a, b));
        order = Integer.compareUnsigned((int) a, (int) b);
        assertEquals(bit(order < 0), Comparisons.I32_LT_U((int) a, (int) b));
        assertEquals(bit(order <= 0), Comparisons.I32_LE_U((int) a, (int) b));
        assertEquals(bit(order > 0), Comparisons.I32_GT_U((int) a, (int) b));
        assertEquals(bit(order >= 0), Comparisons.I32_GE_U((int) a, (int) b));
    }

    @Test
    void theyAreThoseOfUnsignedNumbers() {
        var random = new Random(7);
        for (var a : EDGES) {
            for (var b : EDGES) {
                check(a, b);
            }
        }
        for (int i = 0; i < 1_000_000; i++) {
            var a = random.nextLong() >> random.nextInt(64);
            check(a, random.nextBoolean() ? a + random.nextInt(3) - 1 : random.nextLong() >> random.nextInt(64));
        }
    }

    @Test
    void theEngineCallsThem() throws IOException {
        try (var file = Compiled.class.getResourceAsStream("CompiledMachineFuncGroup_0.class")) {
            var constants = new String(file.readAllBytes(), StandardCharsets.ISO_8859_1);
            assertTrue(constants.contains("rlock/Comparisons"));
        }
    }

    /** With Chicory's comparisons, the last one fails on Java 17. */
    @Test
    void theEngineIsCompiledRightOnceItIsHot() throws Exception {
        System.setProperty(Engine.KIND, "bytecode");
        try {
            var tests = new LockTest();
            tests.aThousandHoldsAndAThousandWaitsShareOneConnectionAndNeedNoThreads();
            tests.tenThousandCancelledWaitsLeaveNothing();
            tests.aLackOfRightsNamesTheKeyAndTheRule();
        } finally {
            System.clearProperty(Engine.KIND);
        }
    }
}
