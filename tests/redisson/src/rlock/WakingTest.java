package rlock;

import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Future;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.redisson.api.RLock;

/** A release by one side wakes the waiters of the other, who would otherwise sleep for a lease of two minutes. */
class WakingTest {
    private static World world;

    @BeforeAll
    static void start() {
        world = new World();
    }

    @AfterAll
    static void stop() throws Exception {
        world.close();
    }

    /** What may end a hold of ours, long before its lease does. */
    enum End {
        RELEASE {
            @Override
            void of(String key) {
                assertEquals(0, world.client.release(key, "here"));
            }
        },
        RELEASE_ALL {
            @Override
            void of(String key) {
                assertNotNull(world.client.acquire(key, "here", World.LEASE, "REENTER"));
                assertEquals(0L, world.client.call("RLOCK.RELEASE", key, "here", "ALL"));
            }
        },
        RELEASE_OF_SEVERAL {
            @Override
            void of(String key) {
                assertEquals(1L, world.client.call("RLOCK.MRELEASE", "here", 1, key));
            }
        },
        FORCE {
            @Override
            void of(String key) {
                assertEquals(1L, world.client.call("RLOCK.FORCE", key));
            }
        },
        CONNECTION {
            @Override
            void of(String key) {
                try (var bound = world.server.connect()) {
                    bound.acquire(key, "here", World.LEASE, "BIND", 0);
                }
            }
        },
        CONNECTION_AND_GRACE {
            @Override
            void of(String key) {
                try (var bound = world.server.connect()) {
                    bound.acquire(key, "here", World.LEASE, "BIND", 10);
                }
            }
        },
        RENEWAL {
            @Override
            void of(String key) {
                assertNotNull(world.client.call("RLOCK.RENEW", key, "here", 10));
            }
        },
        ASKING_AGAIN {
            @Override
            void of(String key) {
                assertNotNull(world.client.acquire(key, "here", 10));
            }
        };

        abstract void of(String key);
    }

    @ParameterizedTest
    @EnumSource(End.class)
    void theEndOfAHoldHereWakesLock(End end) throws Exception {
        wakes(end, RLock::lock);
    }

    @ParameterizedTest
    @EnumSource(End.class)
    void theEndOfAHoldHereWakesATimedTryLock(End end) throws Exception {
        wakes(end, lock -> assertTrue(lock.tryLock(World.LEASE, MILLISECONDS)));
    }

    interface Taking {
        void of(RLock lock) throws Exception;
    }

    private void wakes(End end, Taking taking) throws Exception {
        Calm.run(() -> {
            var key = World.fresh("wakes");
            var lock = world.redisson.getLock(key);
            var thread = world.actor();
            assertNotNull(world.client.acquire(key, "here", World.LEASE));
            var taken = world.waits(thread, key, () -> taking.of(lock));
            long start = System.nanoTime();
            end.of(key);
            long milliseconds = (Actor.result(taken) - start) / 1_000_000;
            assertEquals(world.owner(thread), world.client.info(key).holder().owner());
            assertTrue(milliseconds <= Calm.PROMPT, () -> "woken after " + milliseconds + " ms");
        });
    }

    @Test
    void aReleaseWakesOneThreadOfEachProgramUntilAllHadTheLock() throws Exception {
        var key = World.fresh("several");
        var programs = List.of(world.redisson, world.another);
        assertNotNull(world.client.acquire(key, "here", World.LEASE));
        var taken = new ArrayList<Future<Long>>();
        for (int each = 0; each < 6; each++) {
            var lock = programs.get(each % 2).getLock(key);
            taken.add(world.actor().start(() -> {
                lock.lock();
                lock.unlock();
            }));
        }
        Deadline.until("two listeners", () -> world.client.listeners(World.channel(key)) == 2);
        assertEquals(0, world.client.release(key, "here"));
        // Each release after that wakes another, the last of them long before the lease is over.
        for (var each : taken) {
            Actor.result(each);
        }
        assertTrue(world.client.info(key).isFree());
    }

    /** How Redisson may end a hold of its own. */
    enum Unlock {
        UNLOCK {
            @Override
            void of(RLock lock) {
                lock.unlock();
            }
        },
        FORCE_UNLOCK {
            @Override
            void of(RLock lock) {
                assertTrue(lock.forceUnlock());
            }
        },
        DELETE {
            @Override
            void of(RLock lock) {
                assertEquals(1L, world.client.call("DEL", lock.getName()));
            }
        };

        abstract void of(RLock lock);
    }

    @ParameterizedTest
    @EnumSource(Unlock.class)
    void unlockGrantsToABlockedWaiter(Unlock unlock) throws Exception {
        Calm.run(() -> {
            var key = World.fresh("granted");
            var lock = world.redisson.getLock(key);
            var thread = world.actor();
            thread.run(lock::lock);
            var waiting = world.client.waiting(key, "here", World.LEASE);
            long start = System.nanoTime();
            thread.run(() -> unlock.of(lock));
            var fence = Actor.result(waiting);
            long milliseconds = (System.nanoTime() - start) / 1_000_000;
            assertEquals(fence, world.client.info(key).holder().fence());
            assertTrue(milliseconds <= Calm.PROMPT, () -> "granted after " + milliseconds + " ms");
        });
    }

    @Test
    void unlockGrantsToAWaiterThatIsNotified() throws Exception {
        var key = World.fresh("notified");
        var inbox = World.fresh("inbox");
        var lock = world.redisson.getLock(key);
        var thread = world.actor();
        thread.run(lock::lock);
        var listener = world.connection();
        listener.call("SUBSCRIBE", inbox);
        assertEquals("WAITING", world.client.call("RLOCK.ACQUIRE", key, "here", World.LEASE, "WAIT", 0, "NOTIFY", inbox));
        thread.run(lock::unlock);
        var fence = world.client.info(key).holder().fence();
        assertEquals(List.of("message", inbox, "grant " + fence + " here " + key), listener.hears());

        // And the hold that it got is watched: it hears of a Redisson that does not ask for leave.
        assertTrue(thread.is(lock::forceUnlock));
        assertEquals(List.of("message", inbox, "lost " + fence + " here " + key), listener.hears());
    }

    @Test
    void forceUnlockEndsAHoldOfOurs() throws Exception {
        var key = World.fresh("forced");
        var lock = world.redisson.getLock(key);
        assertNotNull(world.client.acquire(key, "loser", World.LEASE));
        var waiting = world.client.waiting(key, "next", World.LEASE);
        assertTrue(lock.forceUnlock());
        assertNotNull(Actor.result(waiting));
        assertNull(world.client.call("RLOCK.RENEW", key, "loser", World.LEASE));
        assertEquals("next", world.client.info(key).holder().owner());
    }

    @Test
    void forceEndsAHoldOfRedissonAndWakesItsOtherThreads() throws Exception {
        var key = World.fresh("taken");
        var lock = world.redisson.getLock(key);
        var loser = world.actor();
        var next = world.actor();
        loser.run(lock::lock);
        var taken = world.waits(next, key, lock::lock);
        assertEquals(1L, world.client.call("RLOCK.FORCE", key));
        Actor.result(taken);
        assertThrows(IllegalMonitorStateException.class, () -> loser.run(lock::unlock));
        assertTrue(next.is(lock::isHeldByCurrentThread));
        assertFalse(loser.is(lock::isHeldByCurrentThread));
    }

    @Test
    void theEndOfRedissonsLeaseGrantsToAWaiter() throws Exception {
        Calm.run(() -> {
            var key = World.fresh("lapsed");
            var lock = world.redisson.getLock(key);
            var thread = world.actor();
            long start = System.nanoTime();
            thread.run(() -> lock.lock(300, MILLISECONDS));
            long taken = System.nanoTime();
            assertNotNull(Actor.result(world.client.waiting(key, "here", World.LEASE)));
            long now = System.nanoTime();
            assertTrue(now - start >= 299_000_000, () -> "granted " + (now - start) + " ns after it was taken");
            long late = (now - taken) / 1_000_000 - 300;
            assertTrue(late <= Calm.PROMPT, () -> "granted " + late + " ms late");
            assertThrows(IllegalMonitorStateException.class, () -> thread.run(lock::unlock));
        });
    }

    @Test
    void redissonTakesTheLockAtTheEndOfALeaseOfOurs() throws Exception {
        Calm.run(() -> {
            var key = World.fresh("ended");
            var lock = world.redisson.getLock(key);
            long start = System.nanoTime();
            assertNotNull(world.client.acquire(key, "here", 300));
            long held = System.nanoTime();
            long now = Actor.result(world.actor().start(lock::lock));
            assertTrue(now - start >= 299_000_000, () -> "taken " + (now - start) + " ns after it was granted");
            long late = (now - held) / 1_000_000 - 300;
            assertTrue(late <= Calm.PROMPT, () -> "taken " + late + " ms late");
            assertNull(world.client.call("RLOCK.RENEW", key, "here", World.LEASE));
        });
    }
}
