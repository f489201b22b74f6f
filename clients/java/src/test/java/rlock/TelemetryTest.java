package rlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTimeoutPreemptively;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static rlock.Servers.eventually;

import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import java.util.logging.Level;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import rlock.Servers.Network;

/** What a client tells its listener and the holders of a lock that is at risk. */
@Timeout(60)
class TelemetryTest {
    private static final Terms TERMS = Terms.standard().lease(Duration.ofSeconds(2));

    private final List<Occurrence> heard = Collections.synchronizedList(new ArrayList<>());

    /** Those of these kinds, each as its outcome or its text, with its keys. */
    private List<String> of(String... kinds) {
        var these = List.of(kinds);
        synchronized (heard) {
            return heard.stream().filter(it -> these.contains(it.kind()))
                    .map(it -> it.kind() + " " + it.outcome() + it.text() + it.keys()).collect(Collectors.toList());
        }
    }

    @Test
    void aListenerHearsOfEachWaitAndEachHold() throws Exception {
        try (var server = new Servers(); var client = Client.builder(server.url).listener(heard::add).build()) {
            var hold = client.getMultiLock("a", "b").acquire();
            var lock = client.getLock("a");
            assertFalse(lock.tryLock() || lock.tryLock(50, TimeUnit.MILLISECONDS));
            var waits = lock.acquireAsync();
            eventually("it waits", () -> server.isQueued("a", 1));
            waits.cancel(true);
            eventually("it has left", () -> server.isQueued("a", 0));
            assertThrows(IllegalArgumentException.class, client.getLock("")::tryLock);
            hold.close();
            var lost = new CompletableFuture<LostException>();
            client.getLock("k").acquire().onLost(lost::complete, Runnable::run);
            client.force("k");
            lost.get(10, TimeUnit.SECONDS);
            client.getLock("l").acquire();
            var more = client.getLock("l").acquireAsync();
            eventually("it waits", () -> server.isQueued("l", 1));
            client.close();
            assertTrue(more.isCompletedExceptionally());
            // The listener has heard of all when it is closed.
            var told = of("connected", "wait", "hold");
            var expected = List.of("connected 127.0.0.1:" + server.port() + "[]", "wait granted[a, b]", "wait refused[a]",
                    "wait refused[a]", "wait abandoned[a]", "hold released[a, b]", "wait granted[k]", "hold ended_by_server[k]",
                    "wait granted[l]");
            assertEquals(expected, told.subList(0, Math.min(told.size(), expected.size())));
            var rest = told.subList(expected.size(), told.size()).stream().sorted().collect(Collectors.toList());
            assertEquals(List.of("hold closed[l]", "wait Closed[l]"), rest);
            var first = heard.stream().filter(it -> it.kind().equals("hold")).findFirst().orElseThrow();
            assertTrue(first.duration().toMillis() >= 50 && first.duration().toMinutes() == 0, first::toString);
            assertEquals("Occurrence[kind=hold, outcome=released, duration=" + first.duration() + ", text=]", first.toString());
            assertThrows(UnsupportedOperationException.class, () -> first.keys().clear());
        }
    }

    @Test
    void eachHoldLearnsOfARiskBeforeItIsLostAndOnceUntilARenewal() throws Exception {
        var outer = Collections.synchronizedList(new ArrayList<Duration>());
        var inner = Collections.synchronizedList(new ArrayList<Duration>());
        var leads = Collections.synchronizedList(new ArrayList<Duration>());
        var too = Collections.synchronizedList(new ArrayList<Duration>());
        try (var server = new Servers(); var network = new Network(server.port()); var client = Client.of(network.url());
                var listening = Client.builder(network.url()).listener(heard::add).build()) {
            var one = client.activity();
            var holds = List.of(
                    client.getLock("k").onRisk(outer::add).with(TERMS).acquireAsync(null, one).join(),
                    client.getLock("k").with(TERMS).onRisk(inner::add).acquireAsync(null, one).join(),
                    client.getLock("l").with(TERMS).acquire(),
                    client.election("e").onRisk(leads::add).with(TERMS).campaign("here"),
                    listening.getLock("w").onRisk(too::add).with(TERMS).acquire());
            for (int round = 0; round < 2; round++) {
                var before = round;
                network.isMute = false;
                network.cut();
                holds.forEach(it -> it.extend(Duration.ofSeconds(2)));
                network.isMute = true;
                var told = List.of(outer, inner, leads, too);
                eventually("they are at risk", () -> told.stream().allMatch(it -> it.size() > before));
            }
            eventually("they are lost", () -> holds.stream().noneMatch(Hold::isValid) && of("hold").size() == 1);
            for (var told : List.of(outer, inner, leads, too)) {
                assertEquals(2, told.size());
                assertTrue(told.stream().allMatch(it -> !it.isZero() && it.toMillis() <= 1000), told::toString);
            }
            assertEquals(List.of("at_risk [w]", "at_risk [w]", "hold lease_ended[w]"), of("at_risk", "hold"));
            client.close(Duration.ZERO);
            listening.close(Duration.ZERO);
        }
    }

    /** It runs in the client's thread. What is refused does not begin. */
    @Test
    void callsThatBlockAreRefusedInAListener() throws Exception {
        var refused = new AtomicInteger();
        var client = new CompletableFuture<Client>();
        Consumer<Occurrence> listener = it -> {
            if (!it.kind().equals("hold") || refused.get() == 3) {
                return;
            }
            Runnable force = () -> client.join().force("held");
            for (var blocks : List.of(client.join().getLock("l")::lock, force, client.join()::close)) {
                assertThrows(IllegalStateException.class, blocks::run);
                refused.incrementAndGet();
            }
        };
        try (var server = new Servers(); var listening = Client.builder(server.url).listener(listener).build()) {
            client.complete(listening);
            var held = listening.getLock("held").acquire();
            listening.getLock("k").acquire().close();
            eventually("all are refused", () -> refused.get() == 3);
            assertEquals("exclusive", listening.info("held").get("mode"));
            assertTrue(held.isValid());
            assertTrue(listening.getLock("l").tryLock(), "it goes on");
        }
    }

    /** As System.exit does, which waits for the hooks that close clients. */
    @Test
    void aCallbackThatBlocksDoesNotKeepTheClientFromClosing() throws Exception {
        var hasBegun = new CountDownLatch(1);
        var mayEnd = new CountDownLatch(1);
        Consumer<Occurrence> listener = it -> {
            hasBegun.countDown();
            try {
                mayEnd.await();
            } catch (InterruptedException interrupted) {
                throw new IllegalStateException(interrupted);
            }
        };
        try (var server = new Servers()) {
            var client = Client.builder(server.url).listener(listener).build();
            client.getLock("k").acquireAsync();
            hasBegun.await();
            assertTimeoutPreemptively(Duration.ofSeconds(10), () -> client.close(Duration.ofMillis(100)));
            mayEnd.countDown();
            eventually("it ends later", () -> server.connections() == 0);
        }
    }

    @Test
    void theProgramForOpenTelemetryRunsUnchanged() throws Exception {
        var page = Path.of(System.getenv().getOrDefault("RLOCK_DOCS", "../../docs"), "telemetry.md");
        try (var server = new Servers()) {
            var output = AdaptersTest.run(AdaptersTest.programs(page, "class Telemetry").get(0), server.url);
            for (var metric : List.of("wait.duration.*\\{rlock.outcome=\"granted\"}", "hold.duration.*\\{rlock.outcome=\"released\"}",
                    "occurrences.*\\{rlock.kind=\"connected\"}, value=1")) {
                assertTrue(output.lines().anyMatch(it -> it.matches(".*name=rlock.client." + metric + ".*")), output);
            }
        }
    }

    @Test
    void whatAListenerThrowsIsLoggedAndChangesNothingElse() throws Exception {
        Consumer<Occurrence> listener = it -> {
            throw new StackOverflowError("a mistake at " + it.kind());
        };
        try (var errors = new Logged(it -> it.getLevel() == Level.SEVERE && it.getMessage().endsWith("has thrown"));
                var server = new Servers();
                var client = Client.builder(server.url).listener(listener).build()) {
            for (int i = 0; i < 3; i++) {
                client.getLock("k").acquire().close();
            }
            client.close();
            var texts = errors.lines.stream().map(it -> it.getMessage() + ": " + it.getThrown().getMessage()).collect(Collectors.toList());
            for (var kind : List.of("connected", "wait", "hold")) {
                assertTrue(texts.contains("the function of listener has thrown: a mistake at " + kind), texts::toString);
            }
            assertEquals(7, texts.size());
        }
        assertEquals("listener", assertThrows(NullPointerException.class, () -> Client.builder("redis://h").listener(null)).getMessage());
        try (var client = Client.of("redis://127.0.0.1:1")) {
            assertEquals("action", assertThrows(NullPointerException.class, () -> client.getLock("k").onRisk(null)).getMessage());
        }
    }
}
