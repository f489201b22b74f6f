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
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * The engine of one client, in WebAssembly, and the encoding of its events and actions: docs/embedding.md. It makes all
 * decisions. Only the client's thread may call it: code that Chicory has compiled throws in an interrupted thread, which would
 * leave the engine in an inconsistent state.
 */
final class Engine {
    static final int VERSION = 1;
    /** Instead of a time: no limit, or no time at all. */
    static final long NONE = -1;

    private final Clock clock;
    private final Memory memory;
    private final ExportFunction input;
    private final ExportFunction output;
    private final ExportFunction handle;
    private final ExportFunction remaining;

    Engine(String url, String name, Duration[] limits, Clock clock) {
        this.clock = clock;
        Inlining.require();
        var instance = Instance.builder(Compiled.load()).withMachineFactory(Compiled::create).build();
        memory = instance.memory();
        input = instance.export("rlock_input");
        output = instance.export("rlock_output");
        handle = instance.export("rlock_handle");
        remaining = instance.export("rlock_remaining");
        var version = instance.export("rlock_version").apply()[0];
        if (version != VERSION) {
            throw new IllegalStateException("the engine is of version " + version + ", it must be " + VERSION);
        }
        var event = new Writer().u32(VERSION).text(url).text(name).text("rlock-java").text(Client.VERSION);
        for (var limit : limits) {
            event.u64(millis("timeout", limit));
        }
        var seed = new byte[32];
        new SecureRandom().nextBytes(seed);
        event.raw(seed, seed.length);
        passInput(event);
        var wrong = instance.export("rlock_open").apply()[0];
        if (wrong != 0) {
            throw new IllegalArgumentException(new String(result(wrong), StandardCharsets.UTF_8));
        }
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

        Writer raw(byte[] value, int count) {
            if (bytes.length - length < count) {
                bytes = java.util.Arrays.copyOf(bytes, 2 * (length + count));
            }
            System.arraycopy(value, 0, bytes, length, count);
            length += count;
            return this;
        }

        private Writer number(long number, int size) {
            var little = new byte[size];
            for (int i = 0; i < size; i++) {
                little[i] = (byte) (number >>> (8 * i));
            }
            return raw(little, size);
        }

        Writer u8(int number) {
            return number(number, 1);
        }

        Writer u16(int number) {
            return number(number, 2);
        }

        Writer u32(int number) {
            return number(number, 4);
        }

        Writer u64(long number) {
            return number(number, 8);
        }

        Writer bytes(byte[] value, int count) {
            return u32(count).raw(value, count);
        }

        Writer text(String text) {
            var value = text.getBytes(StandardCharsets.UTF_8);
            return bytes(value, value.length);
        }

        Writer list(List<String> values) {
            u32(values.size());
            values.forEach(this::text);
            return this;
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

        long u64() {
            return bytes.getLong();
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

        Action action() {
            var it = new Action();
            it.kind = u8();
            if (it.kind != Action.NOTE) {
                it.number = u64();
            }
            switch (it.kind) {
                case Action.CONNECT:
                    it.how = u8();
                    it.text = text();
                    it.port = Short.toUnsignedInt(bytes.getShort());
                    break;
                case Action.WRITE:
                    it.bytes = bytes();
                    break;
                case Action.CLOSE:
                case Action.REFUSED:
                case Action.DONE:
                    break;
                case Action.GRANTED:
                    it.guard = u64();
                    it.text = text();
                    it.fences = new LinkedHashMap<>();
                    for (int count = bytes.getInt(); count > 0; count--) {
                        it.fences.put(text(), u64());
                    }
                    break;
                case Action.FAILED:
                    it.code = text();
                    it.text = text();
                    it.isTransient = u8() == 1;
                    break;
                case Action.ANSWERED:
                    it.value = value();
                    break;
                case Action.OVER:
                    it.how = u8();
                    break;
                case Action.NOTE:
                    it.how = u8();
                    it.text = text();
                    break;
                case Action.LEADER:
                    it.leads = u8() == 1;
                    it.fence = u64();
                    it.bytes = bytes();
                    it.text = text();
                    it.left = u64();
                    it.isMissed = u8() == 1;
                    break;
                default:
                    throw new IllegalStateException("unknown action " + it.kind);
            }
            return it;
        }
    }

    /** An action of the engine. */
    static final class Action {
        static final int CONNECT = 1, WRITE = 2, CLOSE = 3, GRANTED = 4, REFUSED = 5, DONE = 6, FAILED = 7, ANSWERED = 8;
        static final int OVER = 9, NOTE = 10, LEADER = 11;

        int kind;
        /** The number of a connection, a call or a guard. */
        long number;
        long guard;
        int how;
        int port;
        byte[] bytes;
        String text;
        String code;
        boolean isTransient;
        Map<String, Long> fences;
        Object value;
        boolean leads;
        long fence;
        /** In milliseconds. */
        long left;
        boolean isMissed;
    }
}
