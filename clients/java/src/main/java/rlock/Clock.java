package rlock;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.file.Path;

/**
 * A clock that also runs while a Linux machine is suspended. {@link System#nanoTime} does not: so this clock adds what the
 * uptime, which does, has gained on it. Only one thread at a time may use it.
 */
final class Clock implements AutoCloseable {
    static final Path UPTIME = Path.of("/proc/uptime");
    /** The unit of the uptime. */
    private static final long HUNDREDTH = 10_000_000;
    /** How often {@link #now} looks for a suspend. It takes about 2 µs. */
    private static final long PAUSE = 10_000_000;
    /** The zero. {@link System#nanoTime} itself may be negative. */
    private static final long EPOCH = System.nanoTime() - 3_600_000_000_000L;

    /** {@code null} on other systems, and if it cannot be read. */
    private RandomAccessFile file;
    private final byte[] text = new byte[64];
    private long lead;
    private long suspended;
    private long looked;

    Clock(Path uptime) {
        try {
            file = new RandomAccessFile(uptime.toFile(), "r");
            lead = uptime() - running();
        } catch (FileNotFoundException | SecurityException none) {
            file = null;
        } catch (IOException | RuntimeException unreadable) {
            close();
        }
    }

    private static long running() {
        return System.nanoTime() - EPOCH;
    }

    private long uptime() throws IOException {
        file.seek(0);
        var length = file.read(text);
        long hundredths = 0;
        for (int i = 0; i < length && text[i] != ' '; i++) {
            if (text[i] != '.') {
                hundredths = 10 * hundredths + text[i] - '0';
            }
        }
        return hundredths * HUNDREDTH;
    }

    /** In nanoseconds. It never goes back. A suspend of which it does not know yet is less than 10 ms of this clock ago. */
    long now() {
        return file != null && running() - looked >= PAUSE ? look() : running() + suspended;
    }

    /** The same, but it knows of every suspend. */
    long look() {
        looked = running();
        if (file != null) {
            try {
                // Rounded up, so that no hold seems valid for too long.
                suspended = Math.max(suspended, uptime() + HUNDREDTH - looked - lead);
            } catch (IOException unreadable) {
                close();
            }
        }
        return looked + suspended;
    }

    @Override
    public void close() {
        try {
            if (file != null) {
                file.close();
            }
        } catch (IOException alreadyGone) {
            // It is closed in any case.
        }
        file = null;
    }
}
