package rlock;

import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Each side sees the holds of the other for what they are. */
class ExclusionTest {
    private static World world;

    @BeforeAll
    static void start() {
        world = new World();
    }

    @AfterAll
    static void stop() throws Exception {
        world.close();
    }

    @ParameterizedTest
    @ValueSource(strings = {"a", "{t}:a", "a{b}c", "a{b", "a{}", "a}b", "a b", "schlüssel:鍵:🔑"})
    void oneSideHoldsWhateverTheNameOfTheLock(String key) throws Exception {
        var lock = world.redisson.getLock(key);
        var thread = world.actor();

        thread.run(lock::lock);
        assertNull(world.client.acquire(key, "here", World.LEASE));
        thread.run(lock::unlock);
        assertNotNull(world.client.acquire(key, "here", World.LEASE));

        assertFalse(thread.is(lock::tryLock));
        var taken = world.waits(thread, key, lock::lock);
        assertEquals(0, world.client.release(key, "here"));
        Actor.result(taken);
        var granted = world.client.waiting(key, "here", World.LEASE);
        thread.run(lock::unlock);
        assertNotNull(Actor.result(granted));
        assertEquals(0, world.client.release(key, "here"));
        assertFalse(lock.isLocked());
    }

    @Test
    void aHoldOfRedissonIsShownAsWhatItIs() throws Exception {
        var key = World.fresh("shown");
        var thread = world.actor();
        thread.run(world.redisson.getLock(key)::lock);

        var info = world.client.info(key);
        assertEquals("exclusive", info.mode());
        assertEquals(world.owner(thread), info.holder().owner());
        assertEquals(1, info.holder().count());
        assertTrue(info.holder().leaseLeft() > World.LEASE / 2 && info.holder().leaseLeft() <= World.LEASE, info::toString);
        assertNull(info.holder().fence());
        assertEquals(List.of(world.owner(thread), "1"), world.client.call("HGETALL", key));
    }

    @Test
    void aHoldOfOursIsSomebodyElsesToRedisson() throws Exception {
        var key = World.fresh("foreign");
        var lock = world.redisson.getLock(key);
        var thread = world.actor();
        assertNotNull(world.client.acquire(key, "here", 10_000));

        assertFalse(thread.is(lock::tryLock));
        assertFalse(thread.is(() -> lock.tryLock(50, MILLISECONDS)));
        assertTrue(lock.isLocked());
        assertFalse(thread.is(lock::isHeldByCurrentThread));
        assertFalse(lock.isHeldByThread(thread.id()));
        assertEquals(0, thread.get(lock::getHoldCount));
        var left = lock.remainTimeToLive();
        assertTrue(left > 5_000 && left <= 10_000, () -> "left: " + left);
        assertThrows(IllegalMonitorStateException.class, () -> thread.run(lock::unlock));

        assertEquals(0, world.client.release(key, "here"));
        assertFalse(lock.isLocked());
        assertEquals(-2, lock.remainTimeToLive());
        assertTrue(thread.is(lock::tryLock));
    }

    @Test
    void redissonEntersItsOwnLockAgainAndTheCountIsSeenHere() throws Exception {
        var key = World.fresh("entered");
        var lock = world.redisson.getLock(key);
        var thread = world.actor();
        thread.run(lock::lock);
        assertTrue(thread.is(lock::tryLock));
        assertTrue(thread.is(() -> lock.tryLock(1_000, MILLISECONDS)));
        assertEquals(3, world.client.info(key).holder().count());
        assertNull(world.client.acquire(key, "here", World.LEASE));

        thread.run(lock::unlock);
        thread.run(lock::unlock);
        assertEquals(1, world.client.info(key).holder().count());
        assertNull(world.client.acquire(key, "here", World.LEASE));
        thread.run(lock::unlock);
        assertTrue(world.client.info(key).isFree());
    }

    @Test
    void aHoldTakenHereUnderRedissonsNameIsItsOwn() throws Exception {
        var key = World.fresh("owned");
        var lock = world.redisson.getLock(key);
        var thread = world.actor();
        var fence = world.client.acquire(key, world.owner(thread), 10_000);

        assertTrue(thread.is(lock::isHeldByCurrentThread));
        assertTrue(lock.isHeldByThread(thread.id()));
        assertEquals(1, thread.get(lock::getHoldCount));
        assertFalse(world.actor().is(lock::tryLock));
        thread.run(lock::lock);
        assertEquals(2, thread.get(lock::getHoldCount));
        assertEquals(fence, world.client.info(key).fence());
        assertEquals(fence, world.client.acquire(key, world.owner(thread), World.LEASE, "REENTER"));
        assertEquals(3, thread.get(lock::getHoldCount));

        assertEquals(2, world.client.release(key, world.owner(thread)));
        thread.run(lock::unlock);
        thread.run(lock::unlock);
        assertFalse(lock.isLocked());
        assertEquals(0L, world.client.call("EXISTS", key));
    }

    @Test
    void aHoldTakenByRedissonIsItsOwnersHereToo() throws Exception {
        var key = World.fresh("renewed");
        var lock = world.redisson.getLock(key);
        var thread = world.actor();
        thread.run(() -> lock.lock(5_000, MILLISECONDS));

        var fence = world.client.acquire(key, world.owner(thread), 10_000);
        assertNotNull(fence);
        assertEquals(fence, world.client.call("RLOCK.RENEW", key, world.owner(thread), 20_000));
        assertTrue(lock.remainTimeToLive() > 10_000);
        assertEquals(1, thread.get(lock::getHoldCount));
        assertEquals(0, world.client.release(key, world.owner(thread)));
        assertThrows(IllegalMonitorStateException.class, () -> thread.run(lock::unlock));
        assertTrue(world.client.acquire(key, "here", World.LEASE) > fence);
    }

    @Test
    void threadsAndProgramsAreOwnersOfTheirOwn() throws Exception {
        var key = World.fresh("owners");
        var thread = world.actor();
        thread.run(world.redisson.getLock(key)::lock);
        assertFalse(world.actor().is(world.redisson.getLock(key)::tryLock));
        assertFalse(thread.is(world.another.getLock(key)::tryLock));
        assertNull(world.client.acquire(key, world.another.getId() + ":" + thread.id(), World.LEASE));
    }

    @Test
    void aSharedHoldIsSomebodyElsesToRedisson() throws Exception {
        var key = World.fresh("shared");
        var lock = world.redisson.getLock(key);
        var thread = world.actor();
        assertNotNull(world.client.acquire(key, "reader-1", World.LEASE, "SHARED"));
        assertNotNull(world.client.acquire(key, "reader-2", World.LEASE, "SHARED"));
        assertFalse(thread.is(lock::tryLock));

        var taken = world.waits(thread, key, lock::lock);
        assertEquals(0, world.client.release(key, "reader-1"));
        assertFalse(world.actor().is(lock::tryLock));
        assertEquals(0, world.client.release(key, "reader-2"));
        Actor.result(taken);
        assertNull(world.client.acquire(key, "reader-1", World.LEASE, "SHARED"));
    }
}
