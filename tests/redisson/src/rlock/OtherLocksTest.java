package rlock;

import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Arrays;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import redis.clients.jedis.exceptions.JedisDataException;

/** What docs/migration.md says of Redisson's other classes. */
class OtherLocksTest {
    private static World world;

    @BeforeAll
    static void start() {
        world = new World();
    }

    @AfterAll
    static void stop() throws Exception {
        world.close();
    }

    private static void isNoLock(String key) {
        var before = world.client.call("DUMP", key);
        for (var command : new Object[][] {
            {"RLOCK.ACQUIRE", key, "here", 1000},
            {"RLOCK.ACQUIRE", key, "here", 1000, "SHARED", "WAIT", 10},
            {"RLOCK.RENEW", key, "here", 1000},
            {"RLOCK.RELEASE", key, "here"},
            {"RLOCK.INFO", key},
            {"RLOCK.FORCE", key},
        }) {
            var arguments = Arrays.copyOfRange(command, 1, command.length);
            var error = assertThrows(JedisDataException.class, () -> world.client.call((String) command[0], arguments));
            assertTrue(error.getMessage().startsWith("WRONGTYPE"), error::getMessage);
        }
        assertEquals(before, world.client.call("DUMP", key));
    }

    @Test
    void aFairLockExcludesAndIsExcluded() throws Exception {
        var key = World.fresh("fair");
        var lock = world.redisson.getFairLock(key);
        var thread = world.actor();
        assertTrue(thread.is(lock::tryLock));
        assertNull(world.client.acquire(key, "here", World.LEASE));
        assertEquals(world.owner(thread), world.client.info(key).holder().owner());
        var waiting = world.client.waiting(key, "here", World.LEASE);
        thread.run(lock::unlock);
        assertNotNull(Actor.result(waiting));
        assertFalse(thread.is(lock::tryLock));
        assertEquals(0, world.client.release(key, "here"));
        assertTrue(thread.is(lock::tryLock));
    }

    @Test
    void aWaiterForAFairLockIsNotSeenHereAndSleepsForTheLease() throws Exception {
        Calm.run(() -> {
            var key = World.fresh("asleep");
            var thread = world.actor();
            var channel = World.channel(key) + ":" + world.owner(thread);
            assertNotNull(world.client.acquire(key, "here", 2_000));
            long start = System.nanoTime();
            var taken = thread.start(world.redisson.getFairLock(key)::lock);
            Deadline.until("a waiter that listens", () -> world.client.listeners(channel) == 1);
            // Then it asks once more, of which nothing can be seen.
            Deadline.sleep(200);
            assertEquals(0, world.client.info(key).queued());
            assertEquals(0, world.client.release(key, "here"));
            // It does not hear of that, nor does its place keep anybody away.
            assertNotNull(world.client.acquire(key, "other", 1_000));
            assertEquals(0, world.client.release(key, "other"));
            long slept = (Actor.result(taken) - start) / 1_000_000;
            assertTrue(slept >= 1_900, () -> "slept for " + slept + " ms");
        });
    }

    @Test
    void aReadWriteLockIsNoLockHere() throws Exception {
        var key = World.fresh("held-rw");
        var lock = world.redisson.getReadWriteLock(key);
        var thread = world.actor();
        thread.run(lock.readLock()::lock);
        isNoLock(key);
        thread.run(lock.readLock()::unlock);
        thread.run(lock.writeLock()::lock);
        isNoLock(key);
        thread.run(lock.writeLock()::unlock);
        assertNotNull(world.client.acquire(key, "here", World.LEASE));
    }

    @Test
    void aReadWriteLockTakesALockThatIsHeldHereForAFreeOne() throws Exception {
        var key = World.fresh("rw");
        assertNotNull(world.client.acquire(key, "here", World.LEASE));
        assertTrue(world.actor().is(world.redisson.getReadWriteLock(key).writeLock()::tryLock));
        assertEquals("write", world.client.call("HGET", key, "mode"));
        assertEquals("1", world.client.call("HGET", key, "here"));
        var error = assertThrows(JedisDataException.class, () -> world.client.info(key));
        assertTrue(error.getMessage().contains("RLOCK.FORCE deletes"), error::getMessage);
        // Because of the field for the fence.
        assertNotNull(world.client.call("RLOCK.FORCE", key));
        assertNotNull(world.client.acquire(key, "here", World.LEASE));
    }

    @Test
    void semaphoresAndLatchesAreNoLocksHere() {
        var semaphore = world.redisson.getSemaphore(World.fresh("semaphore"));
        assertTrue(semaphore.trySetPermits(3));
        isNoLock(semaphore.getName());
        var permits = world.redisson.getPermitExpirableSemaphore(World.fresh("permits"));
        assertTrue(permits.trySetPermits(3));
        isNoLock(permits.getName());
        var latch = world.redisson.getCountDownLatch(World.fresh("latch"));
        assertTrue(latch.trySetCount(3));
        isNoLock(latch.getName());
    }

    @Test
    void unlockOfAnExpiredFairLockSucceedsWhereOursIsRefused() throws Exception {
        var key = World.fresh("late");
        var lock = world.redisson.getFairLock(key);
        var thread = world.actor();
        thread.run(() -> lock.lock(10, MILLISECONDS));
        Deadline.until("the end of the lease", () -> !lock.isLocked());
        assertNull(world.client.release(key, world.owner(thread)));
        thread.run(lock::unlock);
        assertThrows(IllegalMonitorStateException.class, () -> thread.run(world.redisson.getLock(key)::unlock));
    }

    @Test
    void aLeaseThatIsNamedIsTheLeaseHere() throws Exception {
        var key = World.fresh("lease");
        var lock = world.redisson.getLock(key);
        var thread = world.actor();
        thread.run(() -> lock.lock(60, SECONDS));
        var left = world.client.info(key).holder().leaseLeft();
        assertTrue(left > 30_000 && left <= 60_000, () -> "left: " + left);
        assertTrue(thread.is(() -> lock.tryLock(0, 100, SECONDS)));
        assertTrue(world.client.info(key).holder().leaseLeft() > 60_000);
        assertEquals(2, world.client.info(key).holder().count());
    }
}
