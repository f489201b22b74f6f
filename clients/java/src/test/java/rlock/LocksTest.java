package rlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInfo;
import org.junit.jupiter.api.TestInstance;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;

/** What holds for every library. */
@Execution(ExecutionMode.CONCURRENT)
@TestInstance(TestInstance.Lifecycle.PER_CLASS)
abstract class LocksTest {
    Server server;
    Seen seen;
    Locks locks;

    /** Locks of a new client, which ends with the returned Locks or with the process. */
    abstract Locks connect(int port);

    @BeforeAll
    void start() {
        server = Server.withModule();
        seen = new Seen(server.port);
        locks = connect(server.port);
    }

    @AfterAll
    void stop() {
        locks.close();
        seen.close();
        server.close();
    }

    static Duration ms(long milliseconds) {
        return Duration.ofMillis(milliseconds);
    }

    static String key(TestInfo test) {
        return test.getTestMethod().orElseThrow().getName();
    }

    /** Runs on a thread of its own, which can be interrupted. */
    static final class Task<T> {
        final FutureTask<T> result;
        final Thread thread;

        Task(Callable<T> call) {
            result = new FutureTask<>(call);
            thread = Locks.daemon(result, "test");
            thread.start();
        }

        T get() throws Exception {
            try {
                return result.get(40, TimeUnit.SECONDS);
            } catch (ExecutionException e) {
                throw e.getCause() instanceof Exception cause ? cause : e;
            }
        }
    }

    @Test
    void oneHoldsAtATimeInTheOrderOfAsking(TestInfo test) throws Exception {
        String key = key(test);
        var first = locks.on(key).lock();
        var order = new ConcurrentLinkedQueue<Integer>();
        var fences = new ConcurrentLinkedQueue<>(List.of(first.fence()));
        var inside = new AtomicInteger();
        var all = new ConcurrentLinkedQueue<Task<?>>();
        for (int i = 0; i < 6; i++) {
            int number = i;
            all.add(new Task<>(() -> {
                try (Held held = locks.on(key).waitAtMost(ms(30_000)).lock()) {
                    assertEquals(1, inside.incrementAndGet());
                    order.add(number);
                    fences.add(held.fence());
                    inside.decrementAndGet();
                }
                return null;
            }));
            seen.queued(key, i + 1);
        }
        first.close();
        for (var task : all) {
            task.get();
        }
        assertEquals(List.of(0, 1, 2, 3, 4, 5), List.copyOf(order));
        assertEquals(fences.stream().sorted().distinct().toList(), List.copyOf(fences));
        seen.free(key);
    }

    @Test
    void waiterIsHandedTheLockWithoutPolling() throws Exception {
        try (var alone = Server.withModule(); var direct = new Seen(alone.port); var mine = connect(alone.port)) {
            var holder = mine.on("k").lock();
            var task = new Task<>(() -> mine.on("k").lock());
            direct.queued("k", 1);
            Thread.sleep(700); // What polls would ask in this time.
            holder.close();
            task.get().close();
            assertTrue(direct.stats().contains("cmdstat_rlock.acquire:calls=3,"), direct.stats());
        }
    }

    @Test
    void holdIsRenewedPastItsLease(TestInfo test) throws Exception {
        var held = locks.on(key(test)).lease(ms(1500)).onLoss(() -> {}).lock();
        Thread.sleep(3500); // More than two leases.
        held.check();
        assertThrows(LockException.NotAcquired.class, () -> locks.on(key(test)).waitAtMost(Duration.ZERO).lock());
        held.close();
        held.close();
        assertFalse(held.isLost());
        assertThrows(IllegalStateException.class, held::check);
        seen.free(key(test));
    }

    @Test
    void longWaitWithAShortLeaseIsConfirmed(TestInfo test) throws Exception {
        var holder = locks.on(key(test)).lock();
        var task = new Task<>(() -> locks.on(key(test)).lease(ms(1500)).lock());
        seen.queued(key(test), 1);
        Thread.sleep(2000); // More than the lease.
        holder.close();
        try (Held held = task.get()) {
            Thread.sleep(2000); // More than the lease.
            held.check();
        }
    }

    @Test
    void forcedReleaseIsToldAsLoss(TestInfo test) throws Exception {
        String key = key(test);
        var told = new CountDownLatch(2);
        var one = locks.on(key).lease(ms(1500)).onLoss(told::countDown).lock();
        var two = locks.on(key + 1, key + 2).lease(ms(1500)).onLoss(told::countDown).lock();
        seen.call("RLOCK.FORCE", key);
        seen.call("RLOCK.FORCE", key + 2);
        assertTrue(told.await(10, TimeUnit.SECONDS));
        assertThrows(LockException.Lost.class, one::check);
        assertThrows(LockException.Lost.class, two::check);
        one.close();
        two.close();
        seen.free(key + 1);
    }

    @Test
    void holderWithAnotherFenceHasLost(TestInfo test) throws Exception {
        var told = new CountDownLatch(1);
        locks.on(key(test)).lease(ms(1500)).owner("me").onLoss(told::countDown).lock();
        seen.call("RLOCK.FORCE", key(test));
        seen.call("RLOCK.ACQUIRE", key(test), "me", "60000");
        assertTrue(told.await(10, TimeUnit.SECONDS));
    }

    @Test
    void lossIsToldBeforeAStoppedServerCanGrantToOthers() throws Exception {
        try (var alone = Server.withModule(); var mine = connect(alone.port)) {
            var told = new CountDownLatch(1);
            var held = mine.on("k").lease(ms(1500)).onLoss(told::countDown).lock();
            alone.signal("STOP");
            assertTrue(told.await(5, TimeUnit.SECONDS));
            assertTrue(held.isLost());
            alone.signal("CONT");
            held.close();
        }
    }

    @Test
    void waitThatIsOverLeavesNoPlace(TestInfo test) throws Exception {
        try (Held held = locks.on(key(test)).lock()) {
            for (var wait : List.of(Duration.ZERO, Duration.ofNanos(1_500_000), ms(200))) {
                long begin = System.nanoTime();
                assertThrows(LockException.NotAcquired.class, () -> locks.lock(key(test), ms(30_000), wait));
                assertTrue(System.nanoTime() - begin >= wait.toNanos());
                assertTrue(seen.info(key(test)).contains("queued=0"), seen.info(key(test)));
            }
            held.check();
        }
    }

    @Test
    void withdrawnWaiterIsToldSo(TestInfo test) throws Exception {
        try (Held held = locks.on(key(test)).lock()) {
            var task = new Task<>(() -> locks.on(key(test)).owner("waiter").lock());
            seen.queued(key(test), 1);
            seen.call("RLOCK.CANCEL", key(test), "waiter");
            assertThrows(LockException.NotAcquired.class, task::get);
            held.check();
        }
    }

    @Test
    void interruptedWaiterLeavesTheQueue(TestInfo test) throws Exception {
        try (Held held = locks.on(key(test)).lock()) {
            var task = new Task<>(() -> locks.on(key(test)).waitAtMost(ms(3_600_000)).lock());
            seen.queued(key(test), 1);
            task.thread.interrupt();
            assertThrows(InterruptedException.class, task::get);
            assertTrue(seen.info(key(test)).contains("queued=0"), seen.info(key(test)));
            held.check();
        }
        seen.free(key(test));
    }

    @Test
    void interruptedInTheMomentOfTheGrantTheLockIsFree(TestInfo test) throws Exception {
        String key = key(test);
        for (int i = 0; i < 100; i++) {
            var holder = locks.on(key).lock();
            var task = new Task<>(() -> {
                locks.on(key).lock().close();
                return null;
            });
            if (i % 4 != 0) { // Else it may not even have asked.
                seen.queued(key, 1);
            }
            new Thread(task.thread::interrupt).start();
            holder.close();
            try {
                task.get();
            } catch (InterruptedException e) {
                Thread.interrupted(); // The task's.
            }
            seen.free(key);
        }
    }

    @Test
    void readersShareAndPermitsAreCounted(TestInfo test) throws Exception {
        String key = key(test);
        try (Held one = locks.on(key).shared().lock(); Held two = locks.on(key).shared().lock()) {
            assertThrows(LockException.NotAcquired.class, () -> locks.on(key).waitAtMost(Duration.ZERO).lock());
            assertTrue(one.fence() < two.fence());
        }
        try (Held three = locks.on(key).limit(4).permits(3).lock()) {
            assertThrows(LockException.NotAcquired.class,
                    () -> locks.on(key).limit(4).permits(2).waitAtMost(Duration.ZERO).lock());
            locks.on(key).limit(4).lock().close();
            three.check();
        }
    }

    @Test
    void severalKeysAreTakenTogether(TestInfo test) throws Exception {
        String a = key(test) + "a";
        String b = key(test) + "b";
        var holder = locks.on(b).lock();
        assertThrows(LockException.NotAcquired.class, () -> locks.on(a, b).waitAtMost(Duration.ZERO).lock());
        seen.free(a);
        var task = new Task<>(() -> locks.on(a, b).lease(ms(1500)).lock());
        seen.queued(b, 1);
        holder.close();
        try (Held both = task.get()) {
            Thread.sleep(3500); // More than two leases.
            both.check();
            assertEquals(List.of(a, b), both.keys());
            assertThrows(LockException.NotAcquired.class, () -> locks.on(a).waitAtMost(Duration.ZERO).lock());
        }
        seen.free(a);
        seen.free(b);
    }

    @Test
    void deadlockIsRefused(TestInfo test) throws Exception {
        String a = key(test) + "a";
        String b = key(test) + "b";
        try (Held one = locks.on(a).owner("dead:1").lock(); Held two = locks.on(b).owner("dead:2").lock()) {
            var task = new Task<>(() -> locks.on(b).owner("dead:1").lock());
            seen.queued(b, 1);
            var refused = assertThrows(LockException.Refused.class, () -> locks.on(a).owner("dead:2").lock());
            assertEquals("DEADLOCK", refused.word());
            task.thread.interrupt();
            assertThrows(InterruptedException.class, task::get);
            assertEquals(List.of("dead:1", "dead:2"), List.of(one.owner(), two.owner()));
        }
    }

    @Test
    void refusalsOfTheServerAreToldApart(TestInfo test) throws Exception {
        seen.call("SET", key(test), "no lock");
        var refused = assertThrows(LockException.Refused.class, () -> locks.on(key(test)).lock());
        assertEquals("WRONGTYPE", refused.word());
        try (var bare = new Server(); var mine = connect(bare.port)) {
            refused = assertThrows(LockException.Refused.class, () -> mine.on("k").lock());
            assertEquals("NOMODULE", refused.word());
        }
    }

    @Test
    void waiterKeepsItsTurnWhenItsConnectionIsLost(TestInfo test) throws Exception {
        String key = key(test);
        var holder = locks.on(key).lock();
        var order = new ConcurrentLinkedQueue<Integer>();
        var all = new ConcurrentLinkedQueue<Task<?>>();
        for (int i = 0; i < 2; i++) {
            int number = i;
            all.add(new Task<>(() -> {
                try (Held held = locks.on(key).lock()) {
                    order.add(number);
                    return held;
                }
            }));
            seen.queued(key, i + 1);
        }
        String id = seen.info(key).replaceFirst("(?s).*?client-id=(\\d+).*", "$1");
        assertEquals(1L, seen.call("CLIENT", "KILL", "ID", id));
        Eventually.so("it asks again", () -> seen.info(key).matches(".*client-id=\\d.*client-id=\\d.*")
                && !seen.info(key).contains("client-id=" + id + " "));
        holder.close();
        for (var task : all) {
            task.get();
        }
        assertEquals(List.of(0, 1), List.copyOf(order));
    }

    @Test
    void afterARestartTheHolderIsToldAndTheWaiterGetsIt() throws Exception {
        try (var alone = Server.withModule(); var mine = connect(alone.port)) {
            var told = new CountDownLatch(1);
            var holder = mine.on("k").lease(ms(2000)).onLoss(told::countDown).lock();
            var task = new Task<>(() -> mine.on("k").lock());
            try (var direct = new Seen(alone.port)) {
                direct.queued("k", 1);
            }
            alone.kill();
            alone.start();
            assertTrue(told.await(10, TimeUnit.SECONDS));
            try (Held held = task.get()) {
                assertTrue(held.fence() > holder.fence());
            }
        }
    }

    @Test
    void callersLimitShorterThanTheWaitLeavesNoGhostOnAStoppedServer() throws Exception {
        try (var alone = Server.withModule(); var mine = connect(alone.port)) {
            mine.on("k").lock().close();
            alone.signal("STOP");
            var task = new Task<>(() -> mine.on("k").owner("me").lease(ms(3_600_000)).waitAtMost(ms(60_000)).lock());
            Thread.sleep(200); // Its caller's limit.
            task.thread.interrupt();
            assertThrows(InterruptedException.class, task::get);
            alone.signal("CONT");
            var held = mine.on("k").owner("me").lock(); // After the withdrawal, which would end this hold.
            try (var direct = new Seen(alone.port)) {
                assertTrue(direct.info("k").contains("mode=exclusive"), direct.info("k"));
                held.close();
                direct.free("k");
            }
        }
    }

    @Test
    void manyWaitersDoNotHoldUpTheHolder(TestInfo test) throws Exception {
        var holder = locks.on(key(test)).lease(ms(3000)).lock();
        var all = new ConcurrentLinkedQueue<Task<?>>();
        for (int i = 0; i < 12; i++) { // More than Jedis's pool has.
            all.add(new Task<>(() -> {
                locks.on(key(test)).lock().close();
                return null;
            }));
        }
        seen.queued(key(test), 12);
        Thread.sleep(3500); // More than the lease.
        holder.check();
        holder.close();
        for (var task : all) {
            task.get();
        }
    }

    @Test
    void lostReplyToATryLeavesOneHold(TestInfo test) throws Exception {
        for (boolean hang : new boolean[] {false, true}) {
            try (var proxy = new Proxy(server.port); var mine = connect(proxy.port())) {
                String key = key(test) + hang;
                mine.on("warm" + key).lock().close();
                var lost = proxy.lose("RLOCK.ACQUIRE", hang);
                Held held = mine.on(key).waitAtMost(ms(8000)).lock();
                assertTrue(lost.await(10, TimeUnit.SECONDS));
                seen.one(key);
                held.close();
                seen.free(key);
            }
        }
    }

    @Test
    void lostReplyToAWaitLeavesOneHold(TestInfo test) throws Exception {
        try (var proxy = new Proxy(server.port); var mine = connect(proxy.port()); Held holder = locks.on(key(test)).lock()) {
            var lost = proxy.lose("WAIT", false);
            var task = new Task<>(() -> mine.on(key(test)).waitAtMost(ms(20_000)).lock());
            seen.queued(key(test), 1);
            holder.close();
            assertTrue(lost.await(10, TimeUnit.SECONDS));
            Held held = task.get();
            seen.one(key(test));
            held.close();
            seen.free(key(test));
        }
    }

    @Test
    void silentWaitLeavesNoGhost(TestInfo test) throws Exception {
        try (var proxy = new Proxy(server.port); var mine = connect(proxy.port()); Held holder = locks.on(key(test)).lock()) {
            var lost = proxy.lose("WAIT", true);
            var task = new Task<>(() -> mine.on(key(test)).lease(ms(3_600_000)).lock());
            seen.queued(key(test), 1);
            holder.close();
            assertTrue(lost.await(10, TimeUnit.SECONDS)); // The grant never arrives.
            task.thread.interrupt();
            assertThrows(InterruptedException.class, task::get);
            // The wait's connection is silent for fifteen seconds: only then it is known not to ask any more.
            locks.lock(key(test), ms(30_000), ms(25_000)).close();
        }
    }

    @Test
    void lostReplyToARenewalIsNoLoss(TestInfo test) throws Exception {
        for (boolean hang : new boolean[] {false, true}) {
            try (var proxy = new Proxy(server.port); var mine = connect(proxy.port())) {
                String key = key(test) + hang;
                Held held = mine.on(key).lease(ms(4500)).lock();
                assertTrue(proxy.lose("RLOCK.RENEW", hang).await(10, TimeUnit.SECONDS));
                Thread.sleep(4700); // More than the lease.
                held.check();
                seen.one(key);
                held.close();
                seen.free(key);
            }
        }
    }

    @Test
    void lostReplyToAReleaseIsNoError(TestInfo test) throws Exception {
        for (boolean hang : new boolean[] {false, true}) {
            try (var proxy = new Proxy(server.port); var mine = connect(proxy.port())) {
                Held held = mine.on(key(test)).lock();
                var lost = proxy.lose("RLOCK.RELEASE", hang);
                held.close();
                assertTrue(lost.await(10, TimeUnit.SECONDS));
                seen.free(key(test));
            }
        }
    }

    @Test
    void releaseThatNobodyAnswersIsAnError() throws Exception {
        var alone = Server.withModule();
        try (var mine = connect(alone.port)) {
            var held = mine.on("k").lock();
            alone.close();
            long begin = System.nanoTime();
            assertThrows(LockException.class, held::close);
            assertTrue(System.nanoTime() - begin < 15_000_000_000L);
            var failure = assertThrows(LockException.class, () -> mine.on("k").lease(ms(300)).lock());
            assertFalse(failure instanceof LockException.NotAcquired, failure.toString());
        }
    }

    @Test
    void rightsOfAnApplicationAreEnough() throws Exception {
        var page = Files.readString(Path.of("../../docs/operating.md"));
        var rule = page.split("`user application on >a-password ")[1].split("`")[0];
        try (var own = Server.withModule(); var admin = new Seen(own.port)) {
            admin.call("ACL", "SETUSER", "admin", "on", ">a-password", "~*", "&*", "+@all");
            admin.call("AUTH", "admin", "a-password");
            // Who does not say who it is has the application's rights, and no others.
            admin.call("ACL", ("SETUSER default resetkeys resetchannels " + rule).split(" "));
            try (var mine = connect(own.port)) {
                var held = mine.on("lock:a").lease(ms(1500)).lock();
                var waiting = new Task<>(() -> mine.on("lock:a").lock());
                admin.queued("lock:a", 1);
                assertThrows(LockException.class, () -> mine.on("lock:a").waitAtMost(ms(2000)).lock());
                held.check(); // It was renewed.
                held.close();
                waiting.get().close();
                mine.on("lock:a").shared().lock().close();
                mine.on("lock:u").limit(4).permits(3).lock().close();
                mine.on("lock:a", "lock:b").lock().close();
                assertEquals(List.of(), admin.call("ACL", "LOG"));
                assertThrows(LockException.Refused.class, () -> mine.on("other").lock());
            }
        }
    }
}
