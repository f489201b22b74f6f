package rlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static rlock.Servers.ask;
import static rlock.Servers.eventually;
import static rlock.Servers.pause;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.Executable;
import java.net.ServerSocket;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import java.util.logging.Level;
import java.util.logging.LogRecord;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import rlock.Servers.Network;

/** Locks on real servers. */
@Timeout(60)
class LockTest {
    private static final Duration SECOND = Duration.ofSeconds(1);

    private static String code(Runnable work) {
        return assertThrows(RlockException.class, work::run).code();
    }

    private static Duration millis(long millis) {
        return Duration.ofMillis(millis);
    }

    @Test
    void aReleaseHandsTheLockOverUnderALargerFence() throws Exception {
        try (var server = new Servers(); var a = Client.of(server.url); var b = Client.of(server.url)) {
            var first = a.getLock("k").acquire();
            assertTrue(b.getLock("k").tryAcquire(Duration.ZERO).isEmpty());
            assertFalse(b.getLock("k").tryLock());
            assertFalse(b.getLock("k").tryLock(20, TimeUnit.MILLISECONDS));
            var waits = b.getLock("k").acquireAsync();
            eventually("it waits", () -> server.isQueued("k", 1));
            first.close();
            first.close();
            try (var second = waits.get(10, TimeUnit.SECONDS)) {
                assertTrue(second.fence() > first.fence());
                assertTrue(second.remaining().toSeconds() >= 25, second.remaining()::toString);
                assertFalse(first.isValid());
                assertThrows(LostException.class, first::check);
            }
            assertTrue(server.isFree("k"));
        }
    }

    /** The methods of Redisson. */
    @Test
    void aThreadReEntersItsLocks() throws Exception {
        try (var server = new Servers(); var client = Client.of(server.url)) {
            var lock = client.getLock("k");
            lock.lock();
            assertTrue(client.getLock("k").tryLock(1, 10, TimeUnit.SECONDS));
            assertEquals(2, lock.getHoldCount());
            lock.unlock();
            assertTrue(lock.isHeldByCurrentThread() && lock.isLocked());
            var other = CompletableFuture.supplyAsync(() -> {
                assertThrows(IllegalMonitorStateException.class, lock::unlock);
                assertFalse(lock.isHeldByCurrentThread());
                return lock.tryLock();
            });
            assertFalse(other.get(10, TimeUnit.SECONDS));
            lock.unlock();
            assertFalse(lock.isLocked());
            assertThrows(IllegalMonitorStateException.class, lock::unlock);
            lock.lock(300, TimeUnit.MILLISECONDS);
            pause(400);
            assertFalse(lock.isHeldByCurrentThread());
            assertThrows(LostException.class, lock::unlock);
            lock.lock();
            assertTrue(client.getLock("k").hold().orElseThrow().fence() > 0);
            assertTrue(lock.forceUnlock());
            assertThrows(LostException.class, lock::unlock);
            assertThrows(UnsupportedOperationException.class, lock::newCondition);
        }
    }

    @Test
    void aNameWithACommaIsNoMultiLock() throws Exception {
        try (var server = new Servers(); var client = Client.of(server.url)) {
            var one = client.getLock("a, b");
            var both = client.getMultiLock("a", "b");
            one.lock();
            assertFalse(both.isHeldByCurrentThread());
            assertThrows(IllegalMonitorStateException.class, both::unlock);
            both.lock();
            one.unlock();
            assertTrue(server.isFree("a, b") && !server.isFree("a"));
            both.unlock();
        }
    }

    /** As users of {@link java.util.concurrent.locks.Lock} write it. */
    @Test
    void aWaitOfATryThatIsLongerThanTheLimitHasNone() throws Exception {
        try (var server = new Servers(); var client = Client.of(server.url)) {
            ask(server.port(), "CONFIG", "SET", "rlock.max-lease-ms", "2592000000");
            var lock = client.getLock("k");
            var days = TimeUnit.DAYS.toMillis(30);
            for (var wait : new long[] {days, days + 1, Long.MAX_VALUE}) {
                assertTrue(lock.tryLock(wait, TimeUnit.MILLISECONDS));
                assertTrue(lock.tryLock(wait, 60_000, TimeUnit.MILLISECONDS));
            }
            assertTrue(lock.tryLock(Long.MAX_VALUE, TimeUnit.DAYS));
            assertThrows(IllegalArgumentException.class, () -> lock.tryAcquire(millis(days + 1)));
        }
    }

    @Test
    void onlyTheHoldWithAFenceIsEnded() throws Exception {
        try (var server = new Servers(); var client = Client.builder(server.url).build()) {
            var hold = client.getLock("k").acquire();
            assertEquals(0, client.force("k", hold.fence() - 1));
            assertTrue(hold.isValid());
            assertEquals(1, client.force("k", (long) client.info("k").get("fence")));
            assertThrows(LostException.class, hold::close);
            for (var fence : new long[] {0, -1, 1L << 53}) {
                var refused = assertThrows(IllegalArgumentException.class, () -> client.force("k", fence));
                assertEquals("fence is " + fence + ", it must be from 1 to 9007199254740991", refused.getMessage());
            }
        }
    }

    private static void refuses(Hold hold, int permits, int held) {
        for (Consumer<Integer> release : List.<Consumer<Integer>>of(hold::release, hold::releaseAsync)) {
            var refused = assertThrows(IllegalArgumentException.class, () -> release.accept(permits));
            assertEquals("permits is " + permits + ", it must be from 1 to " + held, refused.getMessage());
        }
    }

    @Test
    void somePermitsAreReleasedAndTheRestStays() throws Exception {
        try (var server = new Servers(); var client = Client.of(server.url); var other = Client.of(server.url)) {
            var one = other.getSemaphore("p", 3, 1);
            var hold = client.getSemaphore("p", 3, 3).acquire();
            for (var permits : new int[] {0, -1, 4, Integer.MAX_VALUE}) {
                refuses(hold, permits, 3);
            }
            assertFalse(one.tryLock());
            hold.release(1);
            assertTrue(one.tryLock());
            refuses(hold, 3, 2);
            assertTrue(hold.isValid() && one.isHeldByCurrentThread());
            one.unlock();
            assertFalse(other.getSemaphore("p", 3, 2).tryLock());
            CompletableFuture.allOf(hold.releaseAsync(1), hold.releaseAsync(1)).get(10, TimeUnit.SECONDS);
            assertTrue(server.isFree("p") && !hold.isValid());
            assertThrows(LostException.class, () -> hold.release(1));
            hold.close();
            // A thread's own hold.
            var alone = client.getLock("k");
            alone.lock();
            refuses(alone.hold().orElseThrow(), 2, 1);
            alone.hold().orElseThrow().release(1);
            assertTrue(server.isFree("k") && !alone.isHeldByCurrentThread());
            alone.unlock();
        }
    }

    @Test
    void threadsReleaseThePermitsOfOneHold() throws Exception {
        try (var server = new Servers(); var client = Client.of(server.url)) {
            for (int round = 0; round < 20; round++) {
                var hold = client.getSemaphore("p", 8, 8).acquire();
                var threads = Stream.generate(() -> CompletableFuture.runAsync(() -> hold.release(2))).limit(4);
                CompletableFuture.allOf(threads.toArray(CompletableFuture[]::new)).get(10, TimeUnit.SECONDS);
                assertTrue(server.isFree("p") && !hold.isValid());
            }
        }
    }

    @Test
    void eachKindOfLock() throws Exception {
        try (var server = new Servers(); var client = Client.builder(server.url).name("kinds").build()) {
            var read = client.getReadLock("r");
            var write = client.getLock("r");
            var one = read.acquire();
            var two = read.acquire();
            assertFalse(write.tryLock());
            assertFalse(one.upgrade(millis(20)));
            two.close();
            assertTrue(one.upgrade(null));
            assertFalse(read.tryLock());
            one.extend(Duration.ofMinutes(1));
            assertTrue(one.remaining().toSeconds() > 50);
            one.downgrade();
            assertTrue(read.tryLock());
            read.unlock();
            one.close();

            try (var permits = client.getSemaphore("p", 3, 2).acquire()) {
                assertFalse(client.getSemaphore("p", 3, 2).tryLock());
                client.getSemaphore("p", 3, 1).tryAcquire(Duration.ZERO).orElseThrow().close();
                assertTrue(permits.owner().startsWith("kinds:"));
            }
            try (var all = client.getMultiLock("b", "a").acquire()) {
                assertEquals(all.fences().get("a"), all.fence());
                assertFalse(client.getMultiLock("c", "a").tryLock());
                assertEquals(List.of("b", "a"), all.keys());
            }
            assertEquals(0L, client.metrics().get("losses"));
        }
    }

    @Test
    void aCycleOfTwoIsRefused() throws Exception {
        try (var server = new Servers(); var client = Client.of(server.url)) {
            var other = client.activity();
            client.getLock("a").lock();
            var b = client.getLock("b").acquireAsync(null, other).get();
            var waits = client.getLock("a").acquireAsync(null, other);
            eventually("it waits", () -> server.isQueued("a", 1));
            assertEquals("Deadlock", code(client.getLock("b")::lock));
            client.getLock("a").unlock();
            waits.get(10, TimeUnit.SECONDS).close();
            b.close();
        }
    }

    @Test
    void anActivityIsAnotherOwnerInEveryOtherClient() throws Exception {
        try (var server = new Servers(); var client = Client.of(server.url); var other = Client.of(server.url)) {
            client.getLock("k").lock();
            assertNull(client.getLock("k").acquireAsync(Duration.ZERO, other.activity()).get(10, TimeUnit.SECONDS));
            client.getLock("k").unlock();
        }
    }

    @Test
    void terms() throws Exception {
        try (var server = new Servers("replica"); var client = Client.of(server.url)) {
            var standard = Terms.standard();
            var fixed = client.getLock("fixed").with(standard.fixedLease(millis(300))).acquire();
            var most = client.getLock("most").with(standard.lease(millis(300)).maxHold(millis(700))).acquire();
            var bound = client.getLock("bound").with(standard.bound(SECOND)).acquire();
            var known = client.getLock("known").with(standard.replicas(1)).acquire();
            var early = client.getLock("early").with(standard.margin(SECOND.multipliedBy(10))).acquire();
            assertTrue(early.remaining().compareTo(SECOND.multipliedBy(20)) < 0);
            assertThrows(IllegalArgumentException.class, client.getLock("x").with(standard.margin(SECOND.multipliedBy(11)))::acquire);
            for (var each : Map.<String, Runnable>of("lease", () -> early.extend(null), "least", () -> early.releaseAfter(null),
                    "action", () -> early.onLost(null, Runnable::run), "most", () -> standard.maxHold(null),
                    "grace", () -> standard.bound(null)).entrySet()) {
                assertEquals(each.getKey(), assertThrows(NullPointerException.class, each.getValue()::run).getMessage());
            }
            assertThrows(NullPointerException.class, () -> client.getLock("k").tryAcquire(null));
            assertThrows(IllegalArgumentException.class, () -> Client.builder(server.url).name("half \ud800"));
            assertTrue(early.isValid());
            var ignored = client.getLock("ignored").with(standard.fixedLease(millis(3)).ignoringLoss()).acquire();
            pause(400);
            ignored.close();
            assertThrows(LostException.class, fixed::check);
            assertTrue(most.isValid() && bound.isValid() && known.isValid());
            pause(400);
            assertFalse(most.isValid());
            known.releaseAfter(millis(1500));
            assertFalse(server.isFree("known"));
            var both = client.getLock("x").with(standard.bound(SECOND).replicas(1));
            assertThrows(IllegalArgumentException.class, both::lock);
            assertEquals("NotReplicated", code(client.getLock("x").with(standard.replicas(5))::lock));
        }
    }

    @Test
    void badArgumentsAreNamedAndNothingIsSent() {
        for (var url : new String[] {"http://x", "redis://", "redis://127.0.0.1:x"}) {
            assertThrows(IllegalArgumentException.class, () -> Client.of(url));
        }
        try (var client = Client.of("redis://127.0.0.1:1")) {
            var lock = client.getLock("k");
            var cases = new Object[][] {
                {"key is empty", client.getLock("")},
                {"lease is 2ms", lock.with(Terms.standard().lease(Duration.ofMillis(2)))},
                {"lease is PT-1S", lock.with(Terms.standard().lease(SECOND.negated()))},
                {"permits is 3", client.getSemaphore("k", 2, 3)},
                {"keys is 0 keys", client.getMultiLock()},
                {"keys is `a` more than once", client.getMultiLock("a", "a")},
            };
            for (var each : cases) {
                var error = assertThrows(IllegalArgumentException.class, ((RLock) each[1])::lock);
                assertTrue(error.getMessage().startsWith((String) each[0]), error::getMessage);
            }
            assertEquals(assertThrows(IllegalArgumentException.class, client.getMultiLock()::lock).getMessage(),
                    assertThrows(IllegalArgumentException.class, client.getMultiLock()::isLocked).getMessage());
            assertThrows(IllegalArgumentException.class, () -> Terms.standard().replicas(70_000));
            for (var each : List.<Runnable>of(() -> client.getSemaphore("k", 3, -1), () -> client.getSemaphore("k", -1, 1),
                    () -> client.getLock("\uD800"), () -> client.info("\uDBFF"))) {
                assertThrows(IllegalArgumentException.class, each::run);
            }
            client.close(Duration.ZERO);
        }
    }

    @Test
    void aLossIsReportedAtOnceAndAtTheEndOfTheBlock() throws Exception {
        var executor = Executors.newSingleThreadExecutor(work -> new Thread(work, "of-the-user"));
        try (var server = new Servers(); var client = Client.of(server.url)) {
            for (var words : List.of(List.of("RLOCK.FORCE", "k"), List.of("DEL", "k"), List.of("FLUSHALL"))) {
                var thread = new CompletableFuture<String>();
                assertThrows(LostException.class, () -> {
                    try (var hold = client.getLock("k").acquire()) {
                        hold.onLost(lost -> thread.complete(Thread.currentThread().getName()), executor);
                        ask(server.port(), words.toArray(String[]::new));
                        assertEquals("of-the-user", thread.get(1, TimeUnit.SECONDS));
                        assertThrows(LostException.class, hold::check);
                    }
                });
            }
        } finally {
            executor.shutdown();
        }
    }

    @Test
    void aLossThatTheReleaseMeetsFirstIsReportedToo() throws Exception {
        try (var server = new Servers(); var client = Client.of(server.url)) {
            var terms = Terms.standard().fixedLease(millis(20));
            for (var each : List.of(terms, terms, terms, terms.ignoringLoss())) {
                var hold = client.getLock("k").with(each).acquire();
                var before = new CompletableFuture<LostException>();
                var after = new CompletableFuture<LostException>();
                hold.onLost(before::complete, Runnable::run);
                while (hold.isValid()) {
                    Thread.onSpinWait();
                }
                var release = hold.releaseAsync();
                if (each == terms) {
                    assertThrows(LostException.class, () -> client.join(release));
                } else {
                    client.join(release);
                }
                hold.onLost(after::complete, Runnable::run);
                assertEquals(before.get(10, TimeUnit.SECONDS), after.getNow(null));
            }
        }
    }

    @Test
    void aReleaseThatIsRefusedChangesNothing() throws Exception {
        try (var server = new Servers(); var client = Client.of(server.url)) {
            var hold = client.getLock("k").acquire();
            for (var least : List.of(Duration.ofDays(30).plusMillis(1), Duration.ofSeconds(Long.MAX_VALUE), SECOND.negated())) {
                var refused = assertThrows(IllegalArgumentException.class, () -> hold.releaseAfter(least));
                assertTrue(refused.getMessage().startsWith("least is " + least + ", it must "), refused::getMessage);
            }
            hold.check();
            hold.close();
            assertTrue(server.isFree("k"));
            client.getLock("k").lock();
            assertThrows(IllegalArgumentException.class,
                    () -> client.getLock("k").hold().orElseThrow().releaseAfter(Duration.ofDays(31)));
            client.getLock("k").unlock();
            assertTrue(server.isFree("k"));
        }
    }

    @Test
    void anInterruptedThreadWaitsNoLonger() throws Exception {
        try (var server = new Servers(); var client = Client.of(server.url)) {
            var hold = client.getLock("k").acquire();
            var ends = new ArrayList<CompletableFuture<String>>();
            var threads = new ArrayList<Thread>();
            for (int i = 0; i < 2; i++) {
                var end = new CompletableFuture<String>();
                var isFirst = i == 0;
                var thread = new Thread(() -> {
                    try {
                        if (isFirst) {
                            client.getLock("k").lockInterruptibly();
                        } else {
                            client.getLock("k").lock();
                        }
                        end.complete("locked " + Thread.currentThread().isInterrupted());
                        client.getLock("k").unlock();
                    } catch (InterruptedException interrupted) {
                        end.complete("interrupted");
                    }
                });
                ends.add(end);
                threads.add(thread);
                thread.start();
            }
            eventually("they wait", () -> server.isQueued("k", 2));
            threads.forEach(Thread::interrupt);
            assertEquals("interrupted", ends.get(0).get(10, TimeUnit.SECONDS));
            eventually("one waits", () -> server.isQueued("k", 1));
            hold.close();
            assertEquals("locked true", ends.get(1).get(10, TimeUnit.SECONDS));
            threads.get(1).join();
        }
    }

    /** Otherwise the lock would stay held without a holder. */
    @Test
    void anInterruptAtTheMomentOfAGrantLosesNoLock() throws Exception {
        var granted = new CompletableFuture<String>() {
            @Override
            public String get() throws InterruptedException, ExecutionException {
                if (complete("granted")) {
                    throw new InterruptedException();
                }
                return super.get();
            }
        };
        try (var client = Client.of("redis://127.0.0.1:1")) {
            assertEquals("granted", client.await(granted));
            assertTrue(Thread.interrupted());
            client.close(Duration.ZERO);
        }
    }

    @Test
    void aCallThatWouldBlockTheClientIsRefusedAndLeavesNothing() throws Exception {
        try (var server = new Servers(); var client = Client.of(server.url);
                var changes = client.election("l").observe()) {
            var lock = client.getLock("l");
            changes.next();
            for (Callable<?> blocks : List.<Callable<?>>of(lock::acquire, lock::tryLock, changes::next)) {
                var held = client.getLock("k").acquire();
                // The call waits, so its next stage runs in the client's thread.
                var refused = client.getLock("k").acquireAsync().thenAccept(hold -> {
                    assertThrows(IllegalStateException.class, blocks::call);
                    assertThrows(IllegalStateException.class, hold::close);
                });
                held.close();
                refused.get(10, TimeUnit.SECONDS);
            }
            eventually("nothing is left", () -> server.isFree("k") && server.isFree("l"));
        }
    }

    /** But a close has, so that the end of a block leaves nothing. */
    @Test
    void aReleaseThatWouldBlockTheClientHasNoEffect() throws Exception {
        try (var server = new Servers(); var client = Client.of(server.url)) {
            var before = client.getLock("p").acquire();
            // The call waits, so its next stage runs in the client's thread.
            var refused = client.getSemaphore("p", 3, 3).acquireAsync().thenAccept(hold -> {
                assertThrows(IllegalStateException.class, () -> hold.release(1));
                assertThrows(IllegalStateException.class, () -> hold.releaseAfter(SECOND));
                assertTrue(hold.isValid());
                var held = assertThrows(IllegalArgumentException.class, () -> hold.releaseAsync(4));
                assertEquals("permits is 4, it must be from 1 to 3", held.getMessage());
                hold.releaseAsync(3);
            });
            before.close();
            refused.get(10, TimeUnit.SECONDS);
            eventually("it is free", () -> server.isFree("p"));
        }
    }

    @Test
    void aThousandHoldsAndAThousandWaitsShareOneConnectionAndNeedNoThreads() throws Exception {
        try (var server = new Servers(); var client = Client.of(server.url)) {
            client.connect();
            var threads = Thread.activeCount();
            var terms = Terms.standard().lease(Duration.ofSeconds(4));
            var holds = new ArrayList<Hold>();
            var waits = new ArrayList<CompletableFuture<Hold>>();
            for (int i = 0; i < 1000; i++) {
                holds.add(client.getLock("k" + i).with(terms).acquire());
            }
            for (int i = 0; i < 1000; i++) {
                waits.add(client.getLock("k" + i).with(terms).acquireAsync());
            }
            eventually("they wait", () -> server.isQueued("k999", 1));
            pause(3500);
            assertTrue(Thread.activeCount() <= threads + 4, () -> threads + " " + Thread.activeCount());
            assertEquals(1, server.connections());
            for (var hold : holds) {
                hold.check();
                hold.close();
            }
            for (var each : waits) {
                each.get(10, TimeUnit.SECONDS).close();
            }
            assertEquals(0L, client.metrics().get("losses"));
            assertEquals(0L, client.metrics().get("reconnects"));
        }
    }

    @Test
    void tenThousandCancelledWaitsLeaveNothing() throws Exception {
        try (var server = new Servers(); var holder = Client.of(server.url); var client = Client.of(server.url)) {
            var hold = holder.getLock("k").acquire();
            client.connect();
            for (int round = 0; round < 10; round++) {
                var waits = new ArrayList<CompletableFuture<Hold>>();
                for (int i = 0; i < 1000; i++) {
                    waits.add(client.getLock(i % 2 == 0 ? "k" : "l").acquireAsync());
                }
                // Some end before they are connected or sent, some at their grant, the others while they wait.
                pause(round % 3 * round);
                for (var each : waits) {
                    if (!each.cancel(true)) {
                        each.get().close();
                    }
                }
                assertThrows(CancellationException.class, waits.get(0)::join);
            }
            eventually("nothing is left", () -> server.isQueued("k", 0) && server.isFree("l"));
            assertEquals(2, server.connections());
            hold.close();
        }
    }

    @Test
    void aFutureThatEndsOtherwiseThanByTheGrantLeavesNothing() throws Exception {
        try (var server = new Servers(); var client = Client.of(server.url)) {
            var hold = client.getLock("k").acquire();
            for (Consumer<CompletableFuture<Hold>> ends : List.<Consumer<CompletableFuture<Hold>>>of(
                    it -> it.orTimeout(1, TimeUnit.MILLISECONDS), it -> it.completeOnTimeout(null, 1, TimeUnit.MILLISECONDS),
                    it -> it.completeExceptionally(new IllegalStateException()), it -> it.complete(null))) {
                var waits = client.getLock("k").acquireAsync();
                eventually("it waits", () -> server.isQueued("k", 1));
                ends.accept(waits);
                eventually("nothing is left", () -> server.isQueued("k", 0));
            }
            hold.close();
        }
    }

    @Test
    void lostRepliesAndConnectionsThatEndCostNoLockAndLeaveNone() throws Exception {
        var timer = Executors.newScheduledThreadPool(1);
        try (var server = new Servers(); var net = new Network(server.port());
                var client = Client.builder(net.url()).responseTimeout(millis(200)).build()) {
            var terms = Terms.standard().lease(Duration.ofSeconds(4));
            var held = client.getLock("held").with(terms).acquire();
            long last = 0;
            for (int round = 0; round < 12; round++) {
                var isCut = round % 2 == 1;
                var fault = timer.schedule(() -> {
                    if (isCut) {
                        net.cut();
                    } else {
                        net.isMute = true;
                        pause(250);
                        net.isMute = false;
                    }
                }, round % 3, TimeUnit.MILLISECONDS);
                var hold = client.getLock("k").with(terms).acquire();
                assertTrue(hold.fence() > last && hold.isValid());
                last = hold.fence();
                hold.close();
                fault.get();
            }
            held.check();
            held.close();
            eventually("all are free", () -> server.isFree("k") && server.isFree("held"));
        } finally {
            timer.shutdownNow();
        }
    }

    @Test
    void aReleaseSucceedsAlthoughTheServerIsUnreachableForASecond() throws Exception {
        try (var server = new Servers(); var net = new Network(server.port());
                var client = Client.builder(net.url()).responseTimeout(millis(300)).build()) {
            var hold = client.getLock("k").acquire();
            net.isMute = true;
            net.cut();
            var back = new Thread(() -> {
                pause(1_000);
                net.isMute = false;
            });
            back.start();
            hold.close();
            back.join();
            assertTrue(server.isFree("k"));
        }
    }

    @Test
    void twoClientsBehindABadNetworkNeverHoldAtOnce() throws Exception {
        try (var server = new Servers(); var net = new Network(server.port());
                var one = Client.builder(net.url()).responseTimeout(millis(300)).build();
                var two = Client.builder(net.url()).responseTimeout(millis(300)).build()) {
            var inside = new AtomicInteger();
            var grants = new AtomicInteger();
            var begun = System.nanoTime();
            var ended = new AtomicBoolean();
            var work = new ArrayList<CompletableFuture<Void>>();
            var executor = Executors.newCachedThreadPool();
            for (var client : List.of(one, one, one, two, two, two)) {
                work.add(CompletableFuture.runAsync(() -> {
                    while (!ended.get()) {
                        var lock = client.getLock("k").with(Terms.standard().lease(Duration.ofSeconds(5)));
                        lock.lock();
                        assertEquals(1, inside.incrementAndGet());
                        grants.incrementAndGet();
                        pause(1);
                        assertTrue(lock.isHeldByCurrentThread());
                        inside.decrementAndGet();
                        lock.unlock();
                    }
                }, executor));
            }
            while (System.nanoTime() - begun < 2_000_000_000L
                    || grants.get() <= 20 && System.nanoTime() - begun < 30_000_000_000L) {
                pause(120);
                net.cut();
            }
            ended.set(true);
            work.forEach(CompletableFuture::join);
            executor.shutdown();
            assertTrue(grants.get() > 20, grants::toString);
        }
    }

    @Test
    void aPausedServerEndsNoWaitLateAndItsRequestsLeaveNothing() throws Exception {
        try (var server = new Servers();
                var client = Client.builder(server.url).responseTimeout(millis(500)).retryTimeout(SECOND).build()) {
            var hold = client.getLock("k").with(Terms.standard().lease(SECOND)).acquire();
            server.signal("STOP");
            var begun = System.nanoTime();
            assertThrows(RuntimeException.class, () -> client.getLock("l").tryAcquire(millis(500)).orElseThrow());
            assertTrue(System.nanoTime() - begun < 2_500_000_000L);
            pause(Math.max(0, 1100 - (System.nanoTime() - begun) / 1_000_000));
            assertThrows(LostException.class, hold::check);
            server.signal("CONT");
            eventually("nothing is left", () -> server.isFree("k") && server.isFree("l"));
        }
    }

    @Test
    void aFailOverBehindSentinelsAndBehindOneAddress() throws Exception {
        try (var server = new Servers("sentinel", "--sentinels", "1"); var net = new Network(server.port());
                var watched = Client.of(server.url);
                var single = Client.builder(net.url()).responseTimeout(millis(500)).build()) {
            var terms = Terms.standard().lease(Duration.ofMinutes(1));
            var hold = watched.getLock("k").with(terms).acquire();
            var observers = List.of(watched.election("e").observe(), single.election("e").observe());
            var leadership = watched.election("e").with(terms).campaign("before");
            var behind = single.getLock("l").with(terms).acquire();
            eventually("the replica knows", () -> ask(server.port(1), "EXISTS", "l").equals(":1\r\n"));
            // For a while, the addresses lead to a replica, which answers READONLY.
            ask(server.port(), "REPLICAOF", "127.0.0.1", "" + server.port(1));
            var goOn = List.of(behind.releaseAsync(), CompletableFuture.runAsync(() -> leadership.proclaim("after")));
            pause(50);
            ask(server.port(1), "REPLICAOF", "NO", "ONE");
            ask(server.port(), "REPLICAOF", "NO", "ONE");
            goOn.forEach(CompletableFuture::join);
            hold.check();
            for (var changes : observers) {
                for (var seen = ""; !seen.equals("after");) {
                    var leader = changes.poll(SECOND.multipliedBy(20)).orElseThrow().leader();
                    leader.ifPresent(it -> assertEquals(leadership.fence(), it.fence()));
                    seen = leader.map(Election.Proclaimed::text).orElse("nobody");
                }
            }
        }
    }

    @Test
    void aClusterOverAllOfItsSlots() throws Exception {
        try (var server = new Servers("cluster", "--nodes", "3"); var client = Client.of(server.url)) {
            var names = new String[30];
            var holds = new ArrayList<Hold>();
            for (int i = 0; i < 30; i++) {
                names[i] = "key:" + i;
                holds.add(client.getLock(names[i]).acquire());
            }
            assertTrue(client.getMultiLock("key:1", "key:2").tryAcquire(millis(50)).isEmpty());
            holds.forEach(Hold::close);
            try (var all = client.getMultiLock(names).acquire()) {
                assertEquals(30, all.fences().size());
            }
            for (var name : names) {
                var election = client.election(name);
                try (var changes = election.observe()) {
                    assertEquals("nobody", ElectionTest.shown(changes));
                    var leadership = election.campaign(name);
                    assertEquals(name, ElectionTest.shown(changes));
                    assertEquals(leadership.fence(), election.leader().orElseThrow().fence());
                    leadership.resign();
                    assertEquals("nobody", ElectionTest.shown(changes));
                }
            }
        }
    }

    @Test
    void anExceptionSaysItsMessageOnceAndHasTheStackOfItsCaller() {
        try (var server = new Servers(); var client = Client.of(server.url)) {
            var hold = client.getLock("k").acquireAsync().join();
            ask(server.port(), "RLOCK.FORCE", "k");
            ask(server.port(), "SET", "s", "no lock");
            List<Runnable> failures = List.of(hold::close, client.getLock("s")::lock, client.getLock("")::lock);
            for (var failure : failures) {
                var error = assertThrows(RuntimeException.class, failure::run);
                var trace = new StringWriter();
                error.printStackTrace(new PrintWriter(trace));
                assertEquals(2, trace.toString().split(Pattern.quote(error.getMessage()), -1).length, trace::toString);
                assertTrue(trace.toString().contains("LockTest"), trace::toString);
            }
        }
    }

    /** The warnings with this text that are logged while a client of this URL waits for a lock. */
    private static List<String> warningsOfAWait(String url, String text) throws Exception {
        try (var logged = new Logged(it -> it.getLevel() == Level.WARNING && it.getMessage().contains(text));
                var client = Client.of(url)) {
            var waits = client.getLock("invoice:7").acquireAsync();
            eventually("a warning", () -> !logged.lines.isEmpty());
            pause(1000); // Several attempts.
            waits.cancel(true);
            client.close(Duration.ZERO);
            return logged.lines.stream().map(LogRecord::getMessage).collect(Collectors.toList());
        }
    }

    @Test
    void anUnreachableServerIsReportedOnce() throws Exception {
        int port;
        try (var free = new ServerSocket(0)) {
            port = free.getLocalPort();
        }
        var warnings = warningsOfAWait("redis://127.0.0.1:" + port, "127.0.0.1:" + port);
        assertEquals(1, warnings.size(), warnings::toString);
        var expected = "cannot reach 127\\.0\\.0\\.1:" + port + " \\(.*refused.*\\), trying again";
        assertTrue(warnings.get(0).matches(expected), warnings::toString);
    }

    @Test
    void aWrongPasswordIsReportedOnce() throws Exception {
        try (var server = new Servers()) {
            var address = "127.0.0.1:" + server.port();
            ask(server.port(), "CONFIG", "SET", "requirepass", "secret");
            for (var each : List.of(List.of("", "NOAUTH"), List.of(":wrong@", "WRONGPASS"))) {
                var warnings = warningsOfAWait("redis://" + each.get(0) + address, address);
                assertEquals(1, warnings.size(), warnings::toString);
                var expected = address + " refuses the connection (" + each.get(1);
                assertTrue(warnings.get(0).startsWith(expected), warnings::toString);
            }
        }
    }

    @Test
    void aLackOfRightsNamesTheKeyAndTheRule() {
        try (var server = new Servers()) {
            ask(server.port(), "ACL", "SETUSER", "few", "on", ">p", "~other:*", "&rlock:client:*", "+@all");
            try (var client = Client.of("redis://few:p@127.0.0.1:" + server.port())) {
                var error = assertThrows(RlockException.class, client.getLock("invoice:7")::lock);
                assertEquals("Denied", error.code());
                assertTrue(error.getMessage().matches(".*'invoice:7'.* ~invoice:\\*: see docs/operating\\.md.*"), error::getMessage);
                ask(server.port(), "ACL", "SETUSER", "few", "-rlock.acquire");
                error = assertThrows(RlockException.class, client.getLock("other:7")::lock);
                assertTrue(error.getMessage().contains(" +rlock.acquire: see docs/operating.md"), error::getMessage);
            }
        }
    }

    @Test
    void tlsWithTheCertificatesOfTheBuilder() throws Exception {
        try (var server = new Servers("one", "--tls")) {
            var url = server.about.get("tls").get("url").asText();
            try (var strangers = Client.builder(url).retryTimeout(SECOND).build()) {
                var error = assertThrows(RlockException.class, strangers::connect);
                assertTrue(error.getMessage().contains("certif"), error::getMessage);
                strangers.close(Duration.ZERO);
            }
            var roots = KeyStore.getInstance(KeyStore.getDefaultType());
            roots.load(null, null);
            try (var authority = Files.newInputStream(Path.of(server.about.get("tls").get("authority").asText()))) {
                roots.setCertificateEntry("rlock", CertificateFactory.getInstance("X.509").generateCertificate(authority));
            }
            var trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
            trust.init(roots);
            var tls = SSLContext.getInstance("TLS");
            tls.init(null, trust.getTrustManagers(), null);
            try (var client = Client.builder(url).tls(tls).build(); var hold = client.getLock("k").acquire()) {
                hold.check();
            }
        }
    }

    @Test
    void aClosedClientEndsItsWaitsAndReleasesItsHolds() throws Exception {
        try (var server = new Servers()) {
            var client = Client.of(server.url);
            var hold = client.getLock("k").acquire();
            var waits = client.getLock("k").acquireAsync();
            eventually("it waits", () -> server.isQueued("k", 1));
            var lost = client.getLock("lost").acquire();
            ask(server.port(), "RLOCK.FORCE", "lost");
            eventually("its loss", () -> !lost.isValid());
            client.close();
            var loss = assertThrows(LostException.class, lost::close);
            assertEquals("lost: the lock was lost: the server ended it", loss.getMessage());
            var error = assertThrows(CompletionException.class, waits::join);
            assertEquals("Closed", ((RlockException) error.getCause()).code());
            assertTrue(!hold.isValid() && server.isFree("k"));
            assertEquals("k: the lock was lost: the client has been closed", assertThrows(LostException.class, hold::check).getMessage());
            assertEquals("Closed", code(hold::close));
            assertEquals("Closed", code(client.getLock("k")::lock));
            eventually("no connection", () -> server.connections() == 0);
        }
    }

    private static long number(JsonNode node) {
        return node.isNull() ? Engine.NONE : node.bigIntegerValue().longValue();
    }

    /** The functions that encode events, in the order of the events' numbers. */
    private static final List<String> EVENTS = List.of("connect", "lock", "release", "upgrade", "extend", "downgrade", "question",
            "abandon", "metrics", "opened", "received", "ended", "flush", "leaveAll", "closed", "tick", "leave", "untaken",
            "campaign", "proclaim", "observe", "leader", "releasePermits");

    /** The arguments for a function or constructor of {@link Format}, from the next recorded values. */
    private static Object[] recorded(Executable of, Iterator<JsonNode> values) throws ReflectiveOperationException {
        var arguments = new ArrayList<Object>();
        for (var type : of.getParameterTypes()) {
            if (type == Engine.Writer.class) {
                arguments.add(new Engine.Writer());
            } else if (type.getEnclosingClass() == Format.class) {
                var made = type.getDeclaredConstructors()[0];
                arguments.add(made.newInstance(recorded(made, values)));
            } else {
                arguments.add(recorded(type, values.next()));
            }
        }
        return arguments.toArray();
    }

    private static Object recorded(Class<?> type, JsonNode value) {
        var bytes = value.asText().getBytes(StandardCharsets.UTF_8);
        switch (type.getSimpleName()) {
            case "int": return (int) number(value);
            case "long": return number(value);
            case "boolean": return number(value) == 1;
            case "String": return value.asText();
            case "byte[]": return bytes;
            case "ByteBuffer": return ByteBuffer.wrap(bytes);
            default:
                var items = new ArrayList<String>();
                value.forEach(item -> items.add(item.asText()));
                return items;
        }
    }

    @Test
    void eventsAreEncodedAndActionsAreDecodedAsRecorded() throws Exception {
        var file = System.getenv().getOrDefault("RLOCK_RUN", "../../crates/rlock-embed/tests/host/run.json");
        var steps = new ObjectMapper().readTree(new File(file)).get("steps");
        var kinds = List.of(Format.Action.CONNECT, Format.Action.WRITE, Format.Action.CLOSE, Format.Action.GRANTED,
                Format.Action.REFUSED, Format.Action.DONE, Format.Action.FAILED, Format.Action.ANSWERED, Format.Action.OVER,
                Format.Action.NOTE, Format.Action.LEADER, Format.Action.OCCURRED);
        var names = List.of("connect", "write", "close", "granted", "refused", "done", "failed", "answered", "over", "note",
                "leader", "occurred");
        assertTrue(steps.size() > 20);
        for (var step : steps) {
            var values = new ArrayList<JsonNode>();
            step.get("fields").forEach(field -> values.add(field.get(2)));
            var rest = values.iterator();
            var encodes = EVENTS.get(rest.next().intValue() - 1);
            var encoder = Stream.of(Format.class.getDeclaredMethods()).filter(it -> it.getName().equals(encodes)).findAny();
            var event = (Engine.Writer) encoder.orElseThrow().invoke(null, recorded(encoder.get(), rest));
            assertEquals(step.get("event").asText(), HexFormat.of().formatHex(event.bytes, 0, event.length));
            var output = new Engine.Reader(HexFormat.of().parseHex(step.get("output").asText()));
            assertEquals(number(step.get("deadline")), output.u64());
            for (var shown : step.get("actions")) {
                var it = Format.Action.read(output);
                var name = names.get(kinds.indexOf(it.kind));
                if (!name.equals("leader")) {
                    var numbers = List.of(it.connection, it.call, it.guard, (long) it.level);
                    assertTrue(numbers.contains(number(shown.get(name))), shown.toString());
                }
                if (name.equals("leader")) {
                    assertEquals(number(shown.get("call")), it.call);
                    assertEquals(shown.get("missed").asBoolean(), it.isMissed);
                    var leader = shown.get(name);
                    assertEquals(!leader.isNull(), it.leader != null);
                    if (it.leader != null) {
                        assertEquals(number(leader.get(0)), it.leader.fence);
                        assertEquals(leader.get(1).asText(), new String(it.leader.value));
                        assertEquals(leader.get(2).asText(), it.leader.owner);
                        assertEquals(number(leader.get(3)), it.leader.timeLeft);
                    }
                } else if (name.equals("write")) {
                    assertEquals(shown.get("bytes").asText(), StandardCharsets.UTF_8.decode(it.bytes).toString());
                } else if (name.equals("occurred")) {
                    var keys = new ArrayList<String>();
                    shown.get("keys").forEach(key -> keys.add(key.asText()));
                    assertEquals(List.of(shown.get("what").asText(), shown.get("outcome").asText(), number(shown.get("nanoseconds")),
                            keys, shown.get("text").asText()), List.of(it.what, it.outcome, it.nanoseconds, it.keys, it.text));
                } else if (name.equals("failed")) {
                    assertEquals(shown.get("code").asText(), it.code);
                } else if (name.equals("granted")) {
                    for (var pair : shown.get("fences")) {
                        assertEquals(number(pair.get(1)), it.fences.get(pair.get(0).asText()));
                    }
                }
            }
            assertTrue(output.isAtEnd());
        }
        assertNull(new Engine.Reader(new byte[1]).value());
    }

    @Test
    void theExamplesOfReadmeRunUnchanged() throws Exception {
        var examples = Map.of("README.md", List.of("held under fence", "nobody leads"), "../../README.md", List.of("held under fence"));
        for (var each : examples.entrySet()) {
            var example = Pattern.compile("```java\n(.*?)```", Pattern.DOTALL).matcher(Files.readString(Path.of(each.getKey())));
            try (var server = new Servers()) {
                for (var says : each.getValue()) {
                    assertTrue(example.find());
                    var output = AdaptersTest.run(example.group(1), server.url);
                    assertTrue(output.contains(says), output);
                }
            }
        }
    }
}
