package rlock;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;
import rlock.Engine.Writer;

/** The engine in native code, through JNI: crates/rlock-embed/src/java.rs. */
final class Native implements Machine {
    /** Where the library is unpacked. Default: {@code java.io.tmpdir}. */
    static final String DIRECTORY = "rlock.native.directory";

    private static final int MALFORMED = -1;
    private static final int FAILED = -2;

    /** The address of the machine; 0 before it is open and after it is closed. */
    private long machine;
    /** Holds an event before a call, and the output after it. The library knows where it is. */
    private ByteBuffer shared = ByteBuffer.allocateDirect(64 << 10);

    Native() {
        if (Library.PROBLEM != null) {
            throw new IllegalStateException("the native engine cannot be loaded: " + Library.PROBLEM);
        }
    }

    /** Whether the jar has a library for this platform. */
    static boolean isThere() {
        return Native.class.getResource(Library.NAME) != null;
    }

    /** Why the library cannot be used; {@code null} if it is loaded. */
    static String problem() {
        return Library.PROBLEM;
    }

    /** The library, which is loaded once, at its first use. */
    private static final class Library {
        static final String NAME = "native/" + platform() + "/librlock.so";
        static final String PROBLEM = load();

        private static String platform() {
            var processor = System.getProperty("os.arch").replace("amd64", "x86_64");
            var isMusl = false;
            try {
                isMusl = Files.readString(Path.of("/proc/self/maps")).contains("/ld-musl-");
            } catch (IOException | RuntimeException unknown) {
                // The library says so itself when it is loaded.
            }
            return System.getProperty("os.name").toLowerCase(Locale.ROOT) + "-" + processor + (isMusl ? "-musl" : "");
        }

        private static String load() {
            try (var library = Native.class.getResourceAsStream(NAME)) {
                if (library == null) {
                    return "there is no " + NAME + " in the jar";
                }
                var place = Path.of(System.getProperty(DIRECTORY, System.getProperty("java.io.tmpdir")));
                // Only this user may write there.
                var directory = Files.createTempDirectory(place, "rlock");
                var file = directory.resolve("librlock.so");
                try {
                    Files.copy(library, file);
                    System.load(file.toAbsolutePath().toString());
                } finally {
                    // What is loaded needs no name any more.
                    Files.deleteIfExists(file);
                    Files.delete(directory);
                }
                return null;
            } catch (IOException | LinkageError | RuntimeException error) {
                return error.toString();
            }
        }
    }

    private static native int formatVersion();

    private static native long open(ByteBuffer shared, int length);

    private static native int handle(long machine, long now, int length);

    private static native void attach(long machine, ByteBuffer shared);

    private static native long remaining(long machine, long guard, long now);

    private static native void close(long machine);

    private void pass(Writer event) {
        if (event.length > shared.capacity()) {
            grow(event.length);
        }
        shared.clear();
        shared.put(event.bytes, 0, event.length);
    }

    /** After it, the last output is in the buffer. */
    private void grow(int length) {
        shared = ByteBuffer.allocateDirect(2 * length);
        if (machine != 0) {
            attach(machine, shared);
        }
    }

    private byte[] result(int length) {
        if (length > shared.capacity()) {
            grow(length);
        }
        var result = new byte[length];
        shared.clear();
        shared.get(result);
        return result;
    }

    private static Error failed() {
        return new Error("the engine has failed: see standard error");
    }

    @Override
    public long version() {
        return formatVersion();
    }

    @Override
    public byte[] open(Writer configuration) {
        pass(configuration);
        machine = open(shared, configuration.length);
        if (machine == 0) {
            throw failed();
        }
        if (machine > 0) {
            return null;
        }
        var length = (int) -machine;
        machine = 0;
        return result(Math.min(length, shared.capacity()));
    }

    @Override
    public byte[] handle(Writer event, long now) {
        pass(event);
        var length = handle(machine, now, event.length);
        if (length == FAILED) {
            throw failed();
        }
        return length == MALFORMED ? null : result(length);
    }

    @Override
    public long remaining(long guard, long now) {
        return remaining(machine, guard, now);
    }

    @Override
    public void close() {
        close(machine);
        machine = 0;
    }
}
