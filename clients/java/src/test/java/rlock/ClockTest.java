package rlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static rlock.Servers.eventually;
import static rlock.Servers.pause;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.concurrent.atomic.AtomicBoolean;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** The clock, and what a suspend of the machine does to a hold. A file stands for the uptime. */
@Timeout(60)
class ClockTest {
    private static final long SECOND = 1_000_000_000;

    @TempDir
    private Path directory;
    private Path uptime;

    @BeforeEach
    void theMachineHasBegun() throws IOException {
        uptime = directory.resolve("uptime");
        runsSince(100);
    }

    private void runsSince(int seconds) throws IOException {
        Files.writeString(uptime, seconds + ".00 0.00\n");
    }

    @Test
    void itRunsAsTheMonotonicClockDoes() {
        for (var file : new Path[] {Clock.UPTIME, directory.resolve("none"), directory}) {
            try (var clock = new Clock(file)) {
                var begun = clock.look();
                var monotonic = System.nanoTime();
                pause(100);
                var difference = clock.look() - begun - (System.nanoTime() - monotonic);
                assertTrue(Math.abs(difference) < SECOND / 20, file + ": " + difference);
            }
        }
    }

    @Test
    void itCountsASuspendAndNeverGoesBack() throws IOException {
        try (var clock = new Clock(uptime)) {
            var begun = clock.look();
            runsSince(160);
            var woken = clock.look() - begun;
            assertTrue(woken > 59 * SECOND && woken < 70 * SECOND, () -> "" + woken);
            runsSince(10);
            assertTrue(clock.look() - begun >= woken);
            runsSince(220);
            pause(11);
            var again = clock.now() - begun;
            assertTrue(again > 119 * SECOND && again < 130 * SECOND, () -> "" + again);
        }
    }

    @Test
    void aHoldIsInvalidAfterASuspendThatIsLongerThanItsLease() throws Exception {
        var terms = Terms.standard().lease(Duration.ofSeconds(6));
        try (var server = new Servers(); var client = Client.builder(server.url).uptime(uptime).build()) {
            var hold = client.getLock("k").with(terms).acquire();
            var isLost = new AtomicBoolean();
            hold.onLost(why -> isLost.set(true), Runnable::run);
            hold.check();
            runsSince(160);
            assertFalse(hold.isValid());
            assertEquals(Duration.ZERO, hold.remaining());
            assertThrows(LostException.class, hold::check);
            eventually("the loss is reported", isLost::get);
            assertThrows(LostException.class, hold::close);
            client.getLock("k").with(terms).acquire().close();
        }
    }
}
