package rlock;

import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.redisson.api.RLock;

/** Threads of both kinds take locks in every way that they have, and no two are inside at once. */
class RandomWalkTest {
    private static final int STEPS = 150;

    /** What a lock guards: a counter that is only right if nobody else counts at the same time. */
    private static final class Guarded {
        final String key = World.fresh("walk");
        final AtomicReference<String> inside = new AtomicReference<>();
        final AtomicInteger readers = new AtomicInteger();
        final AtomicInteger entries = new AtomicInteger();
        int counter;
        long lastFence;

        /** The fence is null if Redisson was granted the lock. */
        void enter(String who, Long fence) {
            assertEquals(null, inside.compareAndExchange(null, who), () -> who + " is in " + key + " at the same time");
            assertEquals(0, readers.get(), () -> "readers are in " + key + " with " + who);
            int before = counter;
            Thread.yield();
            counter = before + 1;
            entries.incrementAndGet();
            if (fence != null) {
                assertTrue(fence > lastFence, () -> "fence " + fence + " after " + lastFence);
                lastFence = fence;
            }
            assertEquals(who, inside.getAndSet(null));
        }

        void read(String who) {
            readers.incrementAndGet();
            assertEquals(null, inside.get(), () -> who + " reads " + key + " at the same time");
            Thread.yield();
            assertEquals(null, inside.get(), () -> who + " reads " + key + " at the same time");
            readers.decrementAndGet();
        }
    }

    private final World world = new World("rlock.yield-after 4");
    private final AtomicReference<Throwable> failure = new AtomicReference<>();
    private final List<Guarded> locks = List.of(new Guarded(), new Guarded());

    @Test
    void noTwoHoldALockAtOnce() throws Exception {
        long seed = new Random().nextLong();
        var ends = new ArrayList<Future<Long>>();
        for (int each = 0; each < 3; each++) {
            var random = new Random(seed + each);
            var who = "here-" + each;
            var connection = world.connection();
            ends.add(world.actor().start(() -> repeat(() -> stepHere(connection, who, random))));
        }
        for (int each = 3; each < 6; each++) {
            var random = new Random(seed + each);
            var who = "there-" + each;
            ends.add(world.actor().start(() -> repeat(() -> stepThere(who, random))));
        }
        // Who fails leaves locks behind, and the others wait for them without end.
        Deadline.until("the end of the walk", () -> failure.get() != null || ends.stream().allMatch(Future::isDone));
        if (failure.get() != null) {
            throw new AssertionError("with seed " + seed, failure.get());
        }
        for (var lock : locks) {
            assertEquals(lock.entries.get(), lock.counter);
            assertTrue(lock.entries.get() >= STEPS, () -> "entered only " + lock.entries + " times");
            // The last hold may be one that ends by itself. All others would last for longer than is waited here.
            Deadline.until(lock.key + " is free", () -> world.client.info(lock.key).isFree());
            assertEquals(0, world.client.info(lock.key).queued());
        }
    }

    @AfterEach
    void stop() throws Exception {
        world.close();
    }

    private void repeat(Actor.Action step) {
        try {
            for (int each = 0; each < STEPS; each++) {
                step.run();
            }
        } catch (Throwable first) {
            failure.compareAndSet(null, first);
        }
    }

    private void stepHere(Client client, String who, Random random) {
        var lock = locks.get(random.nextInt(locks.size()));
        switch (random.nextInt(9)) {
            case 0 -> enter(client, lock, who, client.acquire(lock.key, who, World.LEASE));
            case 1 -> enter(client, lock, who, client.acquire(lock.key, who, World.LEASE, "WAIT", 1 + random.nextInt(20)));
            case 2 -> enter(client, lock, who, client.acquire(lock.key, who, World.LEASE, "WAIT", 5, "KEEP", 50));
            case 3 -> enterBoth(client, who, random.nextBoolean());
            case 4 -> {
                assertNotNull(client.acquire(lock.key, who, World.LEASE, "SHARED", "WAIT", 0));
                lock.read(who);
                assertEquals(0, client.release(lock.key, who));
            }
            // Nobody counts under a hold that ends by itself, as a busy machine may let it end too early for that.
            case 5 -> assertNotNull(client.acquire(lock.key, World.fresh(who), 1 + random.nextInt(20), "WAIT", 0));
            case 6 -> {
                try (var bound = world.server.connect()) {
                    var grace = random.nextInt(10);
                    assertNotNull(bound.acquire(lock.key, World.fresh(who), World.LEASE, "WAIT", 0, "BIND", grace));
                }
            }
            default -> enter(client, lock, who, client.acquire(lock.key, who, World.LEASE, "WAIT", 0));
        }
    }

    private static void enter(Client client, Guarded lock, String who, Long fence) {
        if (fence != null) {
            lock.enter(who, fence);
            assertEquals(0, client.release(lock.key, who));
        } else {
            client.call("RLOCK.CANCEL", lock.key, who);
        }
    }

    private void enterBoth(Client client, String who, boolean reversed) {
        var first = locks.get(reversed ? 1 : 0);
        var second = locks.get(reversed ? 0 : 1);
        var fence = (Long) client.call("RLOCK.MACQUIRE", who, World.LEASE, 2, first.key, second.key, "WAIT", 0);
        assertNotNull(fence);
        first.enter(who, fence);
        second.enter(who, fence);
        assertEquals(2L, client.call("RLOCK.MRELEASE", who, 2, second.key, first.key));
    }

    private void stepThere(String who, Random random) throws Exception {
        var program = random.nextBoolean() ? world.redisson : world.another;
        var guarded = locks.get(random.nextInt(locks.size()));
        var lock = program.getLock(guarded.key);
        switch (random.nextInt(7)) {
            case 0 -> enter(lock, guarded, who, lock.tryLock());
            case 1 -> enter(lock, guarded, who, lock.tryLock(1 + random.nextInt(20), MILLISECONDS));
            case 2 -> {
                lock.lock(World.LEASE, MILLISECONDS);
                enter(lock, guarded, who, true);
            }
            case 3 -> {
                var both = program.getMultiLock(program.getLock(locks.get(0).key), program.getLock(locks.get(1).key));
                both.lock();
                locks.get(0).enter(who, null);
                locks.get(1).enter(who, null);
                both.unlock();
            }
            case 4 -> {
                lock.lock(1 + random.nextInt(20), MILLISECONDS);
                Deadline.until("the end of the lease", () -> !lock.isHeldByCurrentThread());
            }
            default -> {
                lock.lock();
                assertTrue(lock.tryLock());
                lock.unlock();
                enter(lock, guarded, who, true);
            }
        }
    }

    private static void enter(RLock lock, Guarded guarded, String who, boolean isHeld) {
        if (isHeld) {
            guarded.enter(who, null);
            lock.unlock();
        }
    }
}
