package rlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Redisson's waiters have no place in the queue, and yet neither side keeps the other out. */
class QueueTest {
    private static World world;

    @BeforeAll
    static void start() {
        world = new World();
    }

    @AfterAll
    static void stop() throws Exception {
        world.close();
    }

    @Test
    void thoseWhoQueueGoBeforeRedissonsWaiters() throws Exception {
        var key = World.fresh("order");
        var lock = world.redisson.getLock(key);
        assertNotNull(world.client.acquire(key, "first", World.LEASE));
        var taken = world.waits(world.actor(), key, lock::lock);
        var second = world.client.waiting(key, "second", World.LEASE);
        var third = world.client.waiting(key, "third", World.LEASE);

        assertEquals(0, world.client.release(key, "first"));
        assertNotNull(Actor.result(second));
        assertEquals(0, world.client.release(key, "second"));
        assertNotNull(Actor.result(third));
        assertFalse(taken.isDone());
        assertEquals(0, world.client.release(key, "third"));
        Actor.result(taken);
    }

    @Test
    void aQueueThatNeverEndsLetsRedissonInAndGoesOn() throws Exception {
        var key = World.fresh("crowd");
        var lock = world.redisson.getLock(key);
        var thread = world.actor();
        var inside = new AtomicInteger();
        var handOffs = new AtomicInteger();
        var over = new AtomicBoolean();
        var crowd = new ArrayList<Actor>();
        var ends = new ArrayList<Future<Long>>();
        for (int each = 0; each < 4; each++) {
            var owner = "here-" + each;
            var connection = world.connection();
            var member = world.actor();
            crowd.add(member);
            ends.add(member.start(() -> {
                while (!over.get()) {
                    assertNotNull(connection.acquire(key, owner, World.LEASE, "WAIT", 0));
                    assertEquals(1, inside.incrementAndGet());
                    handOffs.incrementAndGet();
                    assertEquals(0, inside.decrementAndGet());
                    assertEquals(0, connection.release(key, owner));
                }
            }));
        }
        Deadline.until("a queue", () -> handOffs.get() > 1_000);
        for (int round = 0; round < 5; round++) {
            thread.run(lock::lock);
            assertEquals(1, inside.incrementAndGet());
            int before = handOffs.get();
            Deadline.until("a full queue", () -> world.client.info(key).queued() == crowd.size());
            assertEquals(before, handOffs.get());
            assertEquals(0, inside.decrementAndGet());
            thread.run(lock::unlock);
            Deadline.until("hand-offs after it", () -> handOffs.get() > before);
        }
        over.set(true);
        for (var end : ends) {
            Actor.result(end);
        }
        assertTrue(world.client.info(key).isFree());
    }

    @Test
    void manyWhoKeepTakingItWithRedissonLetAWaiterHereIn() throws Exception {
        var key = World.fresh("programs");
        var over = new AtomicBoolean();
        var ends = new ArrayList<Future<Long>>();
        for (int each = 0; each < 4; each++) {
            var lock = (each % 2 == 0 ? world.redisson : world.another).getLock(key);
            ends.add(world.actor().start(() -> {
                while (!over.get()) {
                    lock.lock();
                    lock.unlock();
                }
            }));
        }
        for (int round = 0; round < 20; round++) {
            assertNotNull(Actor.result(world.client.later("RLOCK.ACQUIRE", key, "here", World.LEASE, "WAIT", 0)));
            assertEquals("here", world.client.info(key).holder().owner());
            assertEquals(0, world.client.release(key, "here"));
        }
        over.set(true);
        for (var end : ends) {
            Actor.result(end);
        }
    }
}
