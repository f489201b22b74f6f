package rlock;

import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Holds that are renewed stay, whatever waits for them. */
class WatchdogTest {
    private static final long LEASE = 900;
    private static World world;

    @BeforeAll
    static void start() {
        world = new World(LEASE);
    }

    @AfterAll
    static void stop() throws Exception {
        world.close();
    }

    @Test
    void redissonsWatchdogKeepsAHoldThatOthersQueueFor() throws Exception {
        Calm.run(LEASE / 9, () -> {
            var key = World.fresh("kept");
            var lock = world.redisson.getLock(key);
            var thread = world.actor();
            thread.run(lock::lock);
            var waiting = world.client.waiting(key, "here", World.LEASE);
            var over = new Deadline(Duration.ofMillis(3 * LEASE));
            while (!over.isOver()) {
                assertEquals(world.owner(thread), world.client.info(key).holder().owner());
                assertNull(world.client.acquire(key, "other", World.LEASE));
                assertFalse(waiting.isDone());
                Deadline.sleep(20);
            }
            thread.run(lock::unlock);
            assertNotNull(Actor.result(waiting));
            assertEquals("here", world.client.info(key).holder().owner());
        });
    }

    @Test
    void aHoldThatIsRenewedHereKeepsRedissonWaiting() throws Exception {
        Calm.run(LEASE / 9, () -> {
            var key = World.fresh("renewed");
            var lock = world.redisson.getLock(key);
            var fence = world.client.acquire(key, "here", LEASE);
            var taken = world.waits(world.actor(), key, lock::lock);
            var over = new Deadline(Duration.ofMillis(3 * LEASE));
            while (!over.isOver()) {
                Deadline.sleep(LEASE / 9);
                assertEquals(fence, world.client.call("RLOCK.RENEW", key, "here", LEASE));
                assertFalse(taken.isDone());
            }
            assertEquals(0, world.client.release(key, "here"));
            Actor.result(taken);
        });
    }

    @Test
    void aWatchdogThatHasLostItsLockRenewsNobodyElses() throws Exception {
        Calm.run(() -> {
            var key = World.fresh("lost");
            var lock = world.redisson.getLock(key);
            world.actor().run(lock::lock);
            var waiting = world.client.waiting(key, "here", 2 * LEASE);
            assertEquals(1L, world.client.call("RLOCK.FORCE", key));
            assertNotNull(Actor.result(waiting));
            long granted = System.nanoTime();
            assertTrue(world.actor().is(() -> lock.tryLock(World.LEASE, MILLISECONDS)));
            long late = (System.nanoTime() - granted) / 1_000_000 - 2 * LEASE;
            assertTrue(Math.abs(late) <= Calm.PROMPT, () -> "taken " + late + " ms after the end of the lease");
        });
    }

    @Test
    void aProgramThatEndsReleasesByTheEndOfItsLease() throws Exception {
        var key = World.fresh("ended");
        var program = World.redisson(LEASE, config -> config.useSingleServer()
                .setAddress(world.server.address())
                .setConnectionMinimumIdleSize(1)
                .setSubscriptionConnectionMinimumIdleSize(1));
        world.actor().run(program.getLock(key)::lock);
        var waiting = world.client.waiting(key, "here", World.LEASE);
        program.shutdown(0, 5, SECONDS);
        assertNotNull(Actor.result(waiting));
    }
}
