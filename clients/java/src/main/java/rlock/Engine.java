package rlock;

import com.dylibso.chicory.runtime.ExportFunction;
import com.dylibso.chicory.runtime.Instance;
import com.dylibso.chicory.runtime.Memory;
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

/**
 * The engine of one client, in WebAssembly, and what its events and actions are made of: docs/embedding.md. It makes all
 * decisions. Only the client's thread may call it: code that Chicory has compiled throws in an interrupted thread, which would
 * leave the engine in an inconsistent state.
 */
final class Engine {
    /** Instead of a time: no limit, or no time at all. */
    static final long NONE = -1;

    private final Clock clock;
    private final Memory memory;
    private final ExportFunction input;
    private final ExportFunction output;
    private final ExportFunction handle;
    private final ExportFunction remaining;

    Engine(Settings<?> settings, Clock clock) {
        this.clock = clock;
        Inlining.require();
        var instance = Instance.builder(Compiled.load()).withMachineFactory(Compiled::create).build();
        memory = instance.memory();
        input = instance.export("rlock_input");
        output = instance.export("rlock_output");
        handle = instance.export("rlock_handle");
        remaining = instance.export("rlock_remaining");
        var version = instance.export("rlock_version").apply()[0];
        if (version != Format.VERSION) {
            throw new IllegalStateException("the engine is of version " + version + ", it must be " + Format.VERSION);
        }
        passInput(configuration(settings));
        var wrong = instance.export("rlock_open").apply()[0];
        if (wrong != 0) {
            throw new IllegalArgumentException(new String(result(wrong), StandardCharsets.UTF_8));
        }
    }

    private static Writer configuration(Settings<?> of) {
        var seed = new byte[32];
        new SecureRandom().nextBytes(seed);
        return Format.configuration(new Writer(), Format.VERSION, of.urls, of.together, of.name, "rlock-java", Client.VERSION,
                millis("responseTimeout", of.responseTimeout), millis("retryTimeout", of.retryTimeout),
                millis("replicationTimeout", of.replicationTimeout), seed);
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

    /** Only a defect of the engine makes a call fail. It is an {@link Error}, so that the client ends. */
    private static long call(ExportFunction function, long... arguments) {
        try {
            return function.apply(arguments)[0];
        } catch (RuntimeException defect) {
            throw new Error("the engine has failed", defect);
        }
    }

    private void passInput(Writer event) {
        var at = (int) call(input, event.length);
        memory.write(at, event.bytes, 0, event.length);
    }

    private byte[] result(long length) {
        return memory.readBytes((int) call(output), (int) length);
    }

    /** Passes an event to the engine, and returns its output. */
    Reader handle(Writer event) {
        passInput(event);
        var length = (int) call(handle, clock.now());
        if (length == -1) {
            throw new IllegalStateException("event " + event.bytes[0] + " is malformed");
        }
        return new Reader(result(length));
    }

    /** For how many nanoseconds a guard is still valid. */
    long remaining(long guard) {
        var left = call(remaining, guard, clock.look());
        return left < 0 ? Long.MAX_VALUE : left;
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
