package rlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.redisson.api.RLock;

/** Redisson's multi-lock takes its locks one after the other, RLOCK.MACQUIRE takes all or none. They are the same locks. */
class MultiLockTest {
    private static World world;
    private String a;
    private String b;
    private RLock both;

    @BeforeAll
    static void start() {
        world = new World();
    }

    @AfterAll
    static void stop() throws Exception {
        world.close();
    }

    @BeforeEach
    void name() {
        a = World.fresh("a");
        b = World.fresh("b");
        both = world.redisson.getMultiLock(world.redisson.getLock(a), world.redisson.getLock(b));
    }

    private Object takeBoth() {
        return world.client.call("RLOCK.MACQUIRE", "here", World.LEASE, 2, a, b);
    }

    @Test
    void oneSideHoldsThemAll() throws Exception {
        var thread = world.actor();
        thread.run(both::lock);
        assertNull(takeBoth());
        assertNull(world.client.acquire(b, "here", World.LEASE));
        assertEquals(world.owner(thread), world.client.info(a).holder().owner());
        thread.run(both::unlock);

        assertNotNull(takeBoth());
        assertFalse(thread.is(both::tryLock));
        assertFalse(thread.is(world.redisson.getLock(a)::tryLock));
        assertEquals(2L, world.client.call("RLOCK.MRELEASE", "here", 2, a, b));
        assertTrue(thread.is(both::tryLock));
    }

    @Test
    void redissonTakesNoneIfOneOfThemIsHeldHere() throws Exception {
        assertNotNull(world.client.acquire(b, "here", World.LEASE));
        assertFalse(world.actor().is(both::tryLock));
        // It takes the first, meets the second, and gives the first back.
        assertTrue(world.client.info(a).isFree());
        assertNotNull(world.client.acquire(a, "here", World.LEASE));
    }

    @Test
    void aRequestForSeveralIsGrantedWhenRedissonHasReleasedThemAll() throws Exception {
        var thread = world.actor();
        thread.run(both::lock);
        var granted = world.client.later("RLOCK.MACQUIRE", "here", World.LEASE, 2, b, a, "WAIT", 0);
        Deadline.until("a place", () -> world.client.info(a).queued() == 1);
        thread.run(world.redisson.getLock(a)::unlock);
        assertFalse(granted.isDone());
        thread.run(world.redisson.getLock(b)::unlock);
        var fence = Actor.result(granted);
        assertEquals(fence, world.client.info(a).fence());
        assertEquals(fence, world.client.info(b).fence());
    }

    @Test
    void aReleaseOfSeveralWakesAMultiLock() throws Exception {
        Calm.run(() -> {
            name();
            assertNotNull(takeBoth());
            var taken = world.waits(world.actor(), a, both::lock);
            long start = System.nanoTime();
            assertEquals(2L, world.client.call("RLOCK.MRELEASE", "here", 2, a, b));
            long milliseconds = (Actor.result(taken) - start) / 1_000_000;
            assertTrue(milliseconds <= Calm.PROMPT, () -> "woken after " + milliseconds + " ms");
        });
    }
}
