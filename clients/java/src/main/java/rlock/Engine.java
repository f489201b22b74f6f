package rlock;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;

/** The engine of one client, which makes all decisions, and what its events and actions are made of: docs/embedding.md. */
final class Engine {
    /** Instead of a time: no limit, or no time at all. */
    static final long NONE = -1;
    /** The engine refuses longer times. */
    static final Duration LONGEST = Duration.ofDays(30);

    /** {@code native} or {@code bytecode}. Default: native, if the jar has a library for this platform that loads. */
    static final String KIND = "rlock.engine";

    private static final System.Logger LOG = System.getLogger("rlock");
    private static final AtomicBoolean IS_REPORTED = new AtomicBoolean();

    /** {@code null} after the end. */
    private Machine machine;
    private final Clock clock;

    Engine(Settings<?> settings) {
        machine = machine(System.getProperty(KIND, ""));
        var version = machine.version();
        if (version != Format.VERSION) {
            throw new IllegalStateException("the engine is of version " + version + ", it must be " + Format.VERSION);
        }
        var wrong = machine.open(configuration(settings));
        if (wrong != null) {
            throw new IllegalArgumentException(new String(wrong, StandardCharsets.UTF_8));
        }
        // The last one, so that an engine that is refused leaves no file open.
        clock = new Clock(settings.uptime);
    }

    /** An engine of this kind; of the default one for an empty text. */
    static Machine machine(String kind) {
        switch (kind) {
            case "native":
                return new Native();
            case "bytecode":
                return new Bytecode();
            case "":
                if (Native.problem() == null) {
                    return new Native();
                }
                if (Native.isThere() && !IS_REPORTED.getAndSet(true)) {
                    LOG.log(System.Logger.Level.WARNING, "cannot load the native engine (" + Native.problem()
                            + "), using the slower one in bytecode");
                }
                return new Bytecode();
            default:
                throw new IllegalArgumentException(KIND + " is " + kind + ", it must be native or bytecode");
        }
    }

    private static Writer configuration(Settings<?> of) {
        var seed = new byte[32];
        new SecureRandom().nextBytes(seed);
        return Format.configuration(new Writer(), Format.VERSION, of.urls, of.together, of.name, "rlock-java", Client.VERSION,
                millis("responseTimeout", of.responseTimeout), millis("retryTimeout", of.retryTimeout),
                millis("replicationTimeout", of.replicationTimeout), of.listener != null, seed);
    }

    /** Whole milliseconds, rounded up; {@code null} means no limit. */
    static long millis(String name, Duration time) {
        if (time == null) {
            return NONE;
        }
        if (time.isNegative()) {
            throw new IllegalArgumentException(name + " is " + time + ", it must not be below zero");
        }
        try {
            return time.plusNanos(999_999).toMillis();
        } catch (ArithmeticException tooLong) {
            return Long.MAX_VALUE;
        }
    }

    /** A text whose UTF-8 is another text's, too, would be the same lock. */
    static void checkText(String name, String text) {
        if (!StandardCharsets.UTF_8.newEncoder().canEncode(text)) {
            throw new IllegalArgumentException(name + " has half of a surrogate pair, it must be well-formed text");
        }
    }

    /** In nanoseconds, as its deadlines are. */
    long now() {
        return clock.now();
    }

    /** Passes an event to the engine, and returns its output. */
    Reader handle(Writer event) {
        var output = machine.handle(event, now());
        if (output == null) {
            throw new IllegalStateException("event " + event.bytes[0] + " is malformed");
        }
        return new Reader(output);
    }

    /** For how many nanoseconds a guard is still valid. */
    long remaining(long guard) {
        var left = machine.remaining(guard, clock.look());
        return left < 0 ? Long.MAX_VALUE : left;
    }

    void close() {
        machine.close();
        machine = null;
        clock.close();
    }

    /** Encodes the fields of an event, one after the other. */
    static final class Writer {
        byte[] bytes = new byte[256];
        int length;

        private void reserve(int count) {
            if (bytes.length - length < count) {
                bytes = Arrays.copyOf(bytes, 2 * (length + count));
            }
        }

        private void number(long number, int size) {
            reserve(size);
            for (int i = 0; i < size; i++) {
                bytes[length++] = (byte) (number >>> (8 * i));
            }
        }

        void u8(int number) {
            number(number, 1);
        }

        void u16(int number) {
            number(number, 2);
        }

        void u32(int number) {
            number(number, 4);
        }

        void u64(long number) {
            number(number, 8);
        }

        void flag(boolean is) {
            u8(is ? 1 : 0);
        }

        void data(ByteBuffer value) {
            var count = value.remaining();
            u32(count);
            reserve(count);
            value.get(bytes, length, count);
            length += count;
        }

        void raw(byte[] value) {
            reserve(value.length);
            System.arraycopy(value, 0, bytes, length, value.length);
            length += value.length;
        }

        void bytes(byte[] value) {
            u32(value.length);
            raw(value);
        }

        void text(String text) {
            bytes(text.getBytes(StandardCharsets.UTF_8));
        }

        void list(List<String> values) {
            u32(values.size());
            values.forEach(this::text);
        }
    }

    /** Decodes an output: the deadline, then the actions. */
    static final class Reader {
        private final ByteBuffer bytes;

        Reader(byte[] output) {
            bytes = ByteBuffer.wrap(output).order(ByteOrder.LITTLE_ENDIAN);
        }

        boolean isAtEnd() {
            return !bytes.hasRemaining();
        }

        int u8() {
            return Byte.toUnsignedInt(bytes.get());
        }

        int u16() {
            return Short.toUnsignedInt(bytes.getShort());
        }

        long u64() {
            return bytes.getLong();
        }

        boolean flag() {
            return u8() == 1;
        }

        /** The fields of a group are there in any case. */
        static <T> T optional(boolean isThere, T group) {
            return isThere ? group : null;
        }

        /** A part of the output. */
        ByteBuffer data() {
            var count = bytes.getInt();
            var value = bytes.slice().limit(count);
            bytes.position(bytes.position() + count);
            return value;
        }

        List<String> list() {
            var items = new ArrayList<String>();
            for (int count = bytes.getInt(); count > 0; count--) {
                items.add(text());
            }
            return items;
        }

        Map<String, Long> fences() {
            var fences = new LinkedHashMap<String, Long>();
            for (int count = bytes.getInt(); count > 0; count--) {
                fences.put(text(), u64());
            }
            return fences;
        }

        byte[] bytes() {
            var value = new byte[bytes.getInt()];
            bytes.get(value);
            return value;
        }

        String text() {
            return new String(bytes(), StandardCharsets.UTF_8);
        }

        /** A value in a server's answer. */
        Object value() {
            switch (u8()) {
                case 0:
                    return null;
                case 1:
                    return u64();
                case 2:
                    return text();
                case 3:
                    var list = new ArrayList<Object>();
                    for (int count = bytes.getInt(); count > 0; count--) {
                        list.add(value());
                    }
                    return list;
                case 4:
                    var table = new LinkedHashMap<String, Object>();
                    for (int count = bytes.getInt(); count > 0; count--) {
                        table.put(String.valueOf(value()), value());
                    }
                    return table;
                default:
                    return new RlockException("Refused", text(), false);
            }
        }
    }
}
