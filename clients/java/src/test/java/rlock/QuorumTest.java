package rlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static rlock.Servers.ask;
import static rlock.Servers.eventually;
import static rlock.Servers.pause;

import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.redisson.Redisson;
import org.redisson.RedissonRedLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import rlock.Servers.Network;

/** Locks on a majority of real servers, some of which fail. */
@Timeout(60)
class QuorumTest {
    /** The startup grace of members, which is the longest lease. */
    private static final Duration GRACE = Duration.ofSeconds(3);

    private static final Terms TERMS = Terms.standard().lease(GRACE);

    private static Servers member() {
        return new Servers("one", "--module-arguments", "startup-grace-ms " + GRACE.toMillis());
    }

    /** Three servers that grant already. */
    private static final class Members implements AutoCloseable {
        final List<Servers> all;

        Members() {
            all = Stream.generate(() -> CompletableFuture.supplyAsync(QuorumTest::member)).limit(3).toList().stream()
                    .map(CompletableFuture::join).toList();
            eventually("they grant", () -> all.stream().allMatch(it -> isGranting(it.port())));
        }

        static boolean isGranting(int port) {
            return ask(port, "INFO", "rlock").contains("grace_left_ms:0\r\n");
        }

        Quorum.Builder builder() {
            return Quorum.builder(urls());
        }

        String[] urls() {
            return all.stream().map(it -> it.url).toArray(String[]::new);
        }

        boolean areFree(String key) {
            return all.stream().allMatch(it -> it.isFree(key));
        }

        @Override
        public void close() {
            all.forEach(Servers::close);
        }
    }

    private static RlockException refused(String code, Runnable call) {
        var error = assertThrows(RlockException.class, call::run);
        assertEquals(code, error.code(), error::getMessage);
        return error;
    }

    /** It is valid for longer than its lease, as the members that are left renew it. */
    private static void outlives(Hold hold) {
        for (var begun = System.nanoTime(); System.nanoTime() - begun < GRACE.plusSeconds(1).toNanos(); pause(20)) {
            hold.check();
        }
    }

    @Test
    void aMajorityHoldsALockForItsThreadAndForAnActivity() throws Exception {
        try (var members = new Members(); var quorum = members.builder().name("billing").anyGrace().build();
                var other = members.builder().anyGrace().build()) {
            quorum.connect();
            var lock = quorum.getLock("k");
            lock.lock();
            assertTrue(lock.tryLock(1, 60, TimeUnit.SECONDS));
            assertEquals(2, lock.getHoldCount());
            var theirs = other.getLock("k");
            assertFalse(theirs.tryLock() || theirs.tryLock(1, TimeUnit.SECONDS));
            lock.unlock();
            var hold = lock.hold().orElseThrow();
            assertTrue(hold.owner().startsWith("billing:") && hold.remaining().toSeconds() >= 25, hold.remaining()::toString);
            hold.extend(Duration.ofMinutes(2));
            assertTrue(hold.remaining().toSeconds() > 100);
            var waits = theirs.acquireAsync();
            eventually("it waits at the gate", () -> members.all.stream().anyMatch(it -> it.isQueued("k", 1)));
            lock.unlock();
            long last;
            try (var second = waits.get(10, TimeUnit.SECONDS)) {
                last = second.fence();
                assertTrue(last > hold.fence() && !hold.isValid());
            }
            var activity = other.activity();
            var outer = theirs.acquireAsync(null, activity).get(10, TimeUnit.SECONDS);
            var inner = theirs.acquireAsync(Duration.ZERO, activity).get(10, TimeUnit.SECONDS);
            assertTrue(outer.fence() > last);
            assertEquals(outer.fence(), inner.fence());
            outer.close();
            assertTrue(inner.isValid() && !lock.tryLock());
            inner.releaseAfter(Duration.ofSeconds(3));
            assertFalse(inner.isValid() || lock.tryLock());
            eventually("the least time is over", () -> members.areFree("k"));
            for (var single : List.<Runnable>of(lock::isLocked, lock::forceUnlock)) {
                assertThrows(IllegalArgumentException.class, single::run);
            }
            lock.lock();
            quorum.close();
            assertTrue(members.areFree("k"));
            refused("Closed", lock::lock);
        }
    }

    @Test
    void aListenerHearsOfOneWaitAndOneHold() {
        var heard = Collections.synchronizedList(new ArrayList<String>());
        Consumer<Occurrence> listener = it -> heard.add(it.kind() + " " + it.outcome() + it.keys());
        try (var members = new Members(); var quorum = members.builder().listener(listener).build()) {
            quorum.connect();
            eventually("all are connected", () -> heard.size() == 3); // It needs a majority.
            quorum.getLock("k").with(TERMS).lock();
            quorum.getLock("k").unlock();
            quorum.close();
            var connected = "connected []";
            assertEquals(List.of(connected, connected, connected, "wait granted[k]", "hold released[k]"), heard);
        }
    }

    @Test
    void whatCannotBeAQuorumIsRefused() {
        for (var count : new int[] {0, 1, 2, 4, 10}) {
            var urls = Stream.generate(() -> "redis://h").limit(count).toArray(String[]::new);
            var refused = assertThrows(IllegalArgumentException.class, () -> Quorum.of(urls)).getMessage();
            assertTrue(refused.startsWith("members is " + count), refused);
        }
        for (var url : List.of("redis+sentinel://h/m", "rediss+cluster://h", "nothing")) {
            var refused = assertThrows(IllegalArgumentException.class, () -> Quorum.of("redis://h", url, "redis://h"));
            assertTrue(refused.getMessage().startsWith("members[1] is "), refused::getMessage);
        }
        try (var members = new Members(); var quorum = members.builder().build()) {
            var addresses = members.all.stream().map(it -> "127.0.0.1:" + it.port()).toList();
            var above = refused("Member", quorum.getLock("k")::lock).getMessage();
            assertTrue(addresses.stream().anyMatch(above::startsWith) && above.contains("startup-grace-ms"), above);
            var hold = quorum.getLock("k").with(TERMS).acquireAsync().join();
            refused("Member", () -> hold.extend(GRACE.plusMillis(1)));
            hold.check();
            hold.close();
            var again = members.urls()[0].replace("127.0.0.1", "localhost");
            try (var same = Quorum.of(members.urls()[0], again, members.urls()[1])) {
                var message = refused("Member", same::connect).getMessage();
                assertTrue(message.contains("is the same server as"), message);
                refused("Member", same.getLock("k").with(TERMS)::tryLock);
            }
            ask(members.all.get(1).port(), "CONFIG", "SET", "requirepass", "secret");
            try (var denied = Quorum.of(members.urls())) {
                var message = refused("Connect", denied::connect).getMessage();
                assertTrue(message.contains("NOAUTH") && message.contains(addresses.get(1)), message);
            }
        }
    }

    /** One member stalls, and then another one is killed. With a third one, the majority is gone. */
    @Test
    void aHolderKeepsItsLockWithoutOneMemberAndLearnsThatTwoAreGone() throws Exception {
        var executor = Executors.newSingleThreadExecutor();
        try (var members = new Members();
                var quorum = members.builder().retryTimeout(Duration.ofSeconds(2)).build()) {
            var lost = new CompletableFuture<LostException>();
            var hold = quorum.getLock("k").with(TERMS).acquire().onLost(lost::complete, executor);
            members.all.get(0).signal("STOP");
            outlives(hold);
            for (var key : List.of("a", "b", "c")) { // Each has another gate.
                quorum.getLock(key).with(TERMS).acquire().close();
            }
            members.all.get(0).signal("CONT");
            eventually("it is held there again", () -> !members.all.get(0).isFree("k"));
            members.all.get(1).signal("KILL");
            outlives(hold);
            members.all.get(2).signal("KILL");
            lost.get(GRACE.toMillis(), TimeUnit.MILLISECONDS);
            assertFalse(hold.isValid());
            assertThrows(LostException.class, hold::check);
            assertThrows(LostException.class, hold::close);
            refused("Unavailable", quorum.getLock("k").with(TERMS)::tryLock);
        } finally {
            executor.shutdown();
        }
    }

    @Test
    void aMemberThatComesBackEmptyTakesPartAfterItsGrace() throws Exception {
        try (var members = new Members(); var net = new Network(members.all.get(0).port());
                var quorum = Quorum.of(net.url(), members.all.get(1).url, members.all.get(2).url);
                var other = Quorum.of(net.url(), members.all.get(1).url, members.all.get(2).url)) {
            var hold = quorum.getLock("k").with(TERMS).acquire();
            var theirs = other.getLock("k").with(TERMS);
            members.all.get(0).signal("KILL");
            try (var empty = member()) {
                net.target = empty.port();
                net.cut();
                for (var isFree = true; !Members.isGranting(empty.port()); isFree = empty.isFree("k")) {
                    assertTrue(isFree, "within its grace");
                    assertTrue(hold.isValid() && !theirs.tryLock());
                }
                eventually("it holds again", () -> !empty.isFree("k"));
                members.all.get(1).signal("KILL");
                assertFalse(theirs.tryLock());
                outlives(hold);
                hold.close();
                assertTrue(theirs.tryLock(10, TimeUnit.SECONDS));
                assertTrue(theirs.hold().orElseThrow().fence() > hold.fence());
                theirs.unlock();
            }
        }
    }

    @Test
    void contendersExcludeEachOtherWhileAMemberDies() throws Exception {
        var executor = Executors.newCachedThreadPool();
        try (var members = new Members()) {
            var inside = new AtomicInteger();
            var fences = new ArrayList<Long>();
            var quorums = Stream.generate(() -> members.builder().anyGrace().build()).limit(4).toList();
            var work = new ArrayList<CompletableFuture<Void>>();
            for (int i = 0; i < 8; i++) {
                var lock = quorums.get(i / 2).getLock("k");
                work.add(CompletableFuture.runAsync(() -> {
                    for (int round = 0; round < 20; round++) {
                        lock.lock();
                        assertEquals(1, inside.incrementAndGet());
                        synchronized (fences) {
                            fences.add(lock.hold().orElseThrow().fence());
                        }
                        pause(1);
                        assertTrue(lock.isHeldByCurrentThread());
                        assertEquals(0, inside.decrementAndGet());
                        lock.unlock();
                    }
                }, executor));
            }
            eventually("some have held it", () -> {
                synchronized (fences) {
                    return fences.size() > 40;
                }
            });
            members.all.get(1).signal("KILL");
            CompletableFuture.allOf(work.toArray(CompletableFuture[]::new)).get(30, TimeUnit.SECONDS);
            assertEquals(160, fences.size());
            assertEquals(fences.stream().sorted().distinct().toList(), fences, "they rise in the order of holding");
            quorums.forEach(Quorum::close);
            assertTrue(members.all.get(0).isFree("k") && members.all.get(2).isFree("k"));
        } finally {
            executor.shutdown();
        }
    }

    @Test
    @Timeout(120) // It compiles and runs three programs.
    void theExamplesOfTheDocumentsRunUnchangedAndExcludeRedLock() throws Exception {
        var durable = new String[] {"one", "--set", "appendonly yes", "--set", "appendfsync always"};
        var migration = Path.of(System.getenv().getOrDefault("RLOCK_DOCS", "../../docs"), "migration.md");
        try (var a = new Servers(durable); var b = new Servers(durable); var c = new Servers(durable);
                var quorum = Quorum.of(a.url, b.url, c.url)) {
            for (var program : AdaptersTest.migration(migration)) {
                assertTrue(AdaptersTest.run(program, a.url, b.url, c.url).contains("sent by a holder"));
            }
            for (var program : AdaptersTest.programs(Path.of("README.md"), "class Survives")) {
                assertTrue(AdaptersTest.run(program, a.url, b.url, c.url).contains("held under fence"));
            }
            var clients = Stream.of(a, b, c).map(server -> {
                var config = new Config();
                config.useSingleServer().setAddress(server.url).setConnectionMinimumIdleSize(1);
                return Redisson.create(config);
            }).toList();
            var theirs = new RedissonRedLock(clients.stream().map(it -> it.getLock("k")).toArray(org.redisson.api.RLock[]::new));
            var ours = quorum.getLock("k");
            ours.lock();
            assertFalse(theirs.tryLock());
            ours.unlock();
            theirs.lock();
            assertFalse(ours.tryLock());
            theirs.unlock();
            assertTrue(ours.tryLock(10, TimeUnit.SECONDS));
            ours.unlock();
            clients.forEach(RedissonClient::shutdown);
        }
    }
}
