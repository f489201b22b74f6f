package rlock;

import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.concurrent.ArrayBlockingQueue;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.redisson.api.DeletedObjectListener;
import org.redisson.api.ExpiredObjectListener;
import org.redisson.api.RLock;
import org.redisson.config.NameMapper;

/** Kinds of locks that the oldest Redisson here does not have: spin, fenced and non-reentrant ones. */
class NewerLocksTest {
    private static World world;

    @BeforeAll
    static void start() {
        world = new World("notify-keyspace-events Egx");
    }

    @AfterAll
    static void stop() throws Exception {
        world.close();
    }

    private void excludesBothWays(RLock lock) throws Exception {
        var key = lock.getName();
        var thread = world.actor();
        thread.run(lock::lock);
        assertNull(world.client.acquire(key, "here", World.LEASE));
        assertEquals(world.owner(thread), world.client.info(key).holder().owner());
        var granted = world.client.waiting(key, "here", World.LEASE);
        thread.run(lock::unlock);
        assertNotNull(Actor.result(granted));
        assertFalse(thread.is(lock::tryLock));
        var taken = thread.start(lock::lock);
        assertEquals(0, world.client.release(key, "here"));
        Actor.result(taken);
        assertEquals(1, world.client.info(key).holder().count());
        thread.run(lock::unlock);
        assertTrue(world.client.info(key).isFree());
    }

    @Test
    void aSpinLockIsTheSameLock() throws Exception {
        excludesBothWays(world.redisson.getSpinLock(World.fresh("spin")));
    }

    @Test
    void aFencedLockIsTheSameLock() throws Exception {
        excludesBothWays(world.redisson.getFencedLock(World.fresh("fenced")));
    }

    @Test
    void aNonReentrantLockIsTheSameLock() throws Exception {
        var lock = world.redisson.getNonReentrantLock(World.fresh("once"));
        excludesBothWays(lock);
        var thread = world.actor();
        assertNotNull(world.client.acquire(lock.getName(), world.owner(thread), World.LEASE));
        assertThrows(IllegalMonitorStateException.class, () -> thread.run(lock::lock));
        assertEquals(1, world.client.info(lock.getName()).holder().count());
    }

    @Test
    void theTokensOfAFencedLockAreACounterOfItsOwn() throws Exception {
        var key = World.fresh("token");
        var lock = world.redisson.getFencedLock(key);
        var thread = world.actor();
        assertEquals(1L, thread.<Long>get(lock::lockAndGetToken));
        thread.run(lock::unlock);
        assertTrue(world.client.acquire(key, "here", World.LEASE) > 1_000_000);
        assertEquals(0, world.client.release(key, "here"));
        assertEquals(2L, thread.<Long>get(lock::lockAndGetToken));
    }

    @Test
    void aListenerHearsOfTheEndOfAHoldOfOurs() throws Exception {
        var released = world.redisson.getLock(World.fresh("released"));
        var lapsed = world.redisson.getLock(World.fresh("lapsed"));
        var heard = new ArrayBlockingQueue<String>(2);
        released.addListener((DeletedObjectListener) heard::add);
        lapsed.addListener((ExpiredObjectListener) heard::add);
        assertNotNull(world.client.acquire(released.getName(), "here", World.LEASE));
        assertEquals(0, world.client.release(released.getName(), "here"));
        assertEquals(released.getName(), heard.poll(30, SECONDS));
        assertNotNull(world.client.acquire(lapsed.getName(), "here", 10));
        assertEquals(lapsed.getName(), heard.poll(30, SECONDS));
    }

    @Test
    void aNameMapperOnlyChangesTheName() throws Exception {
        var program = World.redisson(World.LEASE, config -> {
            config.useSingleServer().setAddress(world.server.address()).setConnectionMinimumIdleSize(1);
            config.setNameMapper(new NameMapper() {
                @Override
                public String map(String name) {
                    return "shop:" + name;
                }

                @Override
                public String unmap(String name) {
                    return name.substring("shop:".length());
                }
            });
        });
        try {
            var name = World.fresh("mapped");
            var thread = world.actor();
            assertNotNull(world.client.acquire("shop:" + name, "here", World.LEASE));
            var taken = world.waits(thread, "shop:" + name, program.getLock(name)::lock);
            assertEquals(0, world.client.release("shop:" + name, "here"));
            Actor.result(taken);
        } finally {
            program.shutdown();
        }
    }
}
