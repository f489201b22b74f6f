package rlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;
import static rlock.Servers.eventually;
import static rlock.Servers.pause;

import java.io.File;
import java.lang.ref.WeakReference;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Supplier;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** What the client's thread survives, and what happens to its callers at its end. */
@Timeout(60)
class ThreadTest {
    private static final String NOWHERE = "redis://127.0.0.1:1";

    /** In another thread, because this call may not return. */
    private static <T> T soon(Supplier<T> call) throws Exception {
        return CompletableFuture.supplyAsync(call).get(10, TimeUnit.SECONDS);
    }

    private static Throwable failure(CompletableFuture<?> of) {
        return assertThrows(ExecutionException.class, () -> of.get(10, TimeUnit.SECONDS)).getCause();
    }

    private static void repeat(Client client, AtomicBoolean isEnded) {
        client.post(() -> {
            if (!isEnded.get()) {
                repeat(client, isEnded);
            }
        });
    }

    /** As of many threads, each of which looks again and again whether its lock is valid. */
    @Test
    void tasksWithoutEndKeepTheClientFromNothing() throws Exception {
        var isEnded = new AtomicBoolean();
        try (var server = new Servers(); var client = Client.of(server.url); AutoCloseable end = () -> isEnded.set(true)) {
            var hold = client.getLock("k").with(Terms.standard().lease(Duration.ofSeconds(1))).acquire();
            repeat(client, isEnded);
            client.getLock("l").acquireAsync().thenCompose(Hold::releaseAsync).get(10, TimeUnit.SECONDS);
            pause(1500);
            hold.check();
        }
    }

    /** A user may have the monitor of any of them. */
    @Test
    void theMonitorOfAPublicObjectKeepsTheClientFromNothing() throws Exception {
        try (var server = new Servers(); var client = Client.of(server.url); var changes = client.election("e").observe()) {
            changes.next();
            var hold = client.getSemaphore("p", 3, 3).acquire();
            soon(() -> {
                synchronized (client) {
                    return client.metrics();
                }
            });
            soon(() -> {
                synchronized (hold) {
                    hold.release(1);
                    hold.release(1);
                    return hold.isValid();
                }
            });
            soon(() -> {
                synchronized (changes) {
                    client.election("e").campaignAsync("it").join();
                    return changes.nextAsync().join();
                }
            });
        }
    }

    @Test
    void aLogThatThrowsEndsNothing() throws Exception {
        var settings = Client.builder(NOWHERE).retryTimeout(Duration.ofMillis(300)).listener(occurrence -> {
            throw new IllegalStateException("the listener's");
        });
        var lines = new ArrayList<String>();
        try (var client = settings.build(); var throwing = new Logged(line -> {
            lines.add(line.getMessage());
            throw new IllegalStateException("the log's disk is full");
        })) {
            for (int i = 0; i < 2; i++) {
                var error = failure(client.getLock("k").acquireAsync(Duration.ZERO, null));
                assertEquals("Unavailable", ((RlockException) error).code());
            }
            assertTrue(lines.contains("the function of listener has thrown"), lines::toString);
            client.close(Duration.ZERO);
        }
    }

    /** Its log throws too. */
    @Test
    void aClientThatFailsEndsItsCallsAndItsHolds() throws Exception {
        try (var server = new Servers(); var client = Client.of(server.url); var throwing = new Logged(line -> {
            throw new IllegalStateException("the log's disk is full");
        })) {
            var hold = client.getLock("k").acquire();
            var lost = new CompletableFuture<LostException>();
            hold.onLost(lost::complete, Runnable::run);
            var waits = client.getLock("k").acquireAsync();
            eventually("it waits", () -> server.isQueued("k", 1));
            var isFirst = new AtomicBoolean(true);
            var task = new CompletableFuture<String>();
            client.post(() -> {
                if (isFirst.getAndSet(false)) {
                    throw new OutOfMemoryError("of the test");
                }
                task.complete("again");
            });
            assertEquals("of the test", failure(waits).getMessage());
            lost.get(10, TimeUnit.SECONDS);
            assertEquals("again", task.get(10, TimeUnit.SECONDS));
            assertFalse(soon(hold::isValid));
            assertEquals("Closed", ((RlockException) failure(client.getLock("l").acquireAsync())).code());
            eventually("no connection", () -> server.connections() == 0);
        }
    }

    @Test
    void aFutureFailsAlthoughMemoryIsShortForAMoment() {
        var isFirst = new AtomicBoolean(true);
        var end = new CompletableFuture<Void>() {
            @Override
            public boolean completeExceptionally(Throwable why) {
                if (isFirst.getAndSet(false)) {
                    throw new OutOfMemoryError("of the test");
                }
                return super.completeExceptionally(why);
            }
        };
        Client.fail(end, new IllegalStateException("why"));
        assertEquals("why", failure(end).getMessage());
    }

    @Test
    void aCallWhoseGrantMakesTheClientFailEnds() throws Exception {
        try (var server = new Servers(); var client = Client.of(server.url)) {
            var hold = new Hold(client, List.of("k"), 1, true, null) {
                @Override
                void granted(Format.Action it) {
                    throw new OutOfMemoryError("of the test");
                }
            };
            var wanted = new Format.Wanted(new Format.Owner(Format.OWNING_NEW, 0, ""), List.of("k"), new Format.Mode(0, 1, 0));
            var form = Terms.standard().form();
            var end = client.call(hold, (to, call) -> Format.lock(to, call, wanted, Engine.NONE, form));
            assertEquals("of the test", failure(end).getMessage());
        }
    }

    @Test
    void anInterruptedThreadClosesItsClientAsAnyOtherDoes() throws Exception {
        try (var server = new Servers()) {
            for (int i = 0; i < 20; i++) {
                var client = Client.of(server.url);
                client.getLock("k" + i).acquire();
                Thread.currentThread().interrupt();
                client.close();
                assertTrue(Thread.interrupted());
                assertTrue(server.isFree("k" + i));
            }
        }
    }

    @Test
    void aCloseThatDoesNotWaitStillSendsTheReleases() throws Exception {
        try (var server = new Servers()) {
            for (int i = 0; i < 20; i++) {
                var key = "k" + i;
                var client = Client.of(server.url);
                client.getLock(key).acquire();
                client.close(Duration.ZERO);
                eventually(key + " is free", () -> server.isFree(key));
            }
        }
    }

    /** A server that cannot answer does not read on. */
    @Test
    void aCloseThatDoesNotWaitStillSendsManyReleases() throws Exception {
        try (var server = new Servers("one", "--tls")) {
            for (var url : List.of(server.url, server.about.get("tls").get("url").asText() + "#insecure")) {
                var client = Client.of(url);
                var holds = new ArrayList<CompletableFuture<Hold>>();
                for (int i = 0; i < 500; i++) {
                    holds.add(client.getLock("k" + i).acquireAsync());
                }
                CompletableFuture.allOf(holds.toArray(CompletableFuture[]::new)).get(10, TimeUnit.SECONDS);
                server.signal("STOP");
                client.close(Duration.ZERO);
                server.signal("CONT");
                eventually("all are free", () -> Servers.ask(server.port(), "DBSIZE").equals(":0\r\n"));
                eventually("no connection", () -> server.connections() == 0);
            }
        }
    }

    /** As of a shutdown hook beside the end of a block. */
    @Test
    void aSecondCloseWaitsForTheFirst() throws Exception {
        try (var server = new Servers(); var client = Client.of(server.url)) {
            client.getLock("k").acquire();
            var inStage = client.getLock("k").acquireAsync().handle((hold, error) -> {
                // In the client's thread, which must not wait for itself.
                client.close();
                return "returned";
            });
            eventually("it waits", () -> server.isQueued("k", 1));
            server.signal("STOP");
            var first = CompletableFuture.runAsync(() -> client.close(Duration.ofSeconds(40)));
            assertEquals("returned", inStage.get(10, TimeUnit.SECONDS));
            client.close(Duration.ofMillis(1));
            var second = CompletableFuture.runAsync(() -> client.close(Duration.ofSeconds(40)));
            pause(100);
            assertFalse(first.isDone() || second.isDone());
            server.signal("CONT");
            second.get(10, TimeUnit.SECONDS);
            assertTrue(server.isFree("k"));
            first.get(10, TimeUnit.SECONDS);
        }
    }

    private static WeakReference<Client> closedWhileThisThreadHolds(String url) {
        var client = Client.of(url);
        client.getLock("k").lock();
        client.close();
        return new WeakReference<>(client);
    }

    @Test
    void aThreadThatHoldsKeepsNoClosedClient() {
        try (var server = new Servers()) {
            var client = closedWhileThisThreadHolds(server.url);
            eventually("it is collected", () -> {
                System.gc();
                return client.get() == null;
            });
        }
    }

    @Test
    void aClientThatIsRefusedLeavesNoFileOpen() {
        var open = new File("/proc/self/fd");
        assumeTrue(open.exists());
        var before = open.list().length;
        for (int i = 0; i < 100; i++) {
            assertThrows(IllegalArgumentException.class, () -> Client.of("nonsense"));
        }
        assertTrue(open.list().length < before + 50);
    }

    @Test
    void aCloseTakesAnyTime() throws Exception {
        try (var server = new Servers(); var other = Client.of(NOWHERE)) {
            var client = Client.of(server.url);
            client.getLock("k").acquire();
            client.close(Duration.ofSeconds(Long.MAX_VALUE));
            assertTrue(server.isFree("k"));
            var refused = assertThrows(IllegalArgumentException.class, () -> other.close(Duration.ofSeconds(-1)));
            assertEquals("timeout is PT-1S, it must not be below zero", refused.getMessage());
            assertThrows(NullPointerException.class, () -> other.close(null));
            other.close(Duration.ZERO);
        }
    }

    private interface Work {
        void run() throws Exception;
    }

    private static void withEachEngine(Work work) throws Exception {
        for (var kind : List.of("native", "bytecode")) {
            System.setProperty(Engine.KIND, kind);
            try {
                work.run();
            } finally {
                System.clearProperty(Engine.KIND);
            }
        }
    }

    @Test
    void anInterruptOfTheClientsThreadEndsNothing() throws Exception {
        withEachEngine(() -> {
            try (var server = new Servers(); var client = Client.of(server.url)) {
                var hold = client.getLock("k").acquire();
                client.post(() -> Thread.currentThread().interrupt());
                assertTrue(soon(hold::isValid));
                var thread = new CompletableFuture<Thread>();
                client.post(() -> thread.complete(Thread.currentThread()));
                var isEnded = new AtomicBoolean();
                var interrupts = CompletableFuture.runAsync(() -> {
                    while (!isEnded.get()) {
                        thread.join().interrupt();
                    }
                });
                for (int i = 0; i < 200; i++) {
                    client.getLock("l").acquireAsync().thenCompose(Hold::releaseAsync).get(10, TimeUnit.SECONDS);
                    assertTrue(soon(hold::isValid));
                }
                isEnded.set(true);
                interrupts.join();
            }
        });
    }

    @Test
    void anInterruptedThreadOpensAClient() throws Exception {
        withEachEngine(() -> {
            Thread.currentThread().interrupt();
            try {
                Client.of(NOWHERE).close();
            } finally {
                assertTrue(Thread.interrupted());
            }
        });
    }

    @Test
    void stagesThatCancelOtherCallsDoNotDisturbTheEnd() throws Exception {
        try (var server = new Servers(); var client = Client.of(server.url)) {
            var lost = new CompletableFuture<LostException>();
            client.getLock("k").acquire().onLost(lost::complete, Runnable::run);
            var waits = new ArrayList<CompletableFuture<Hold>>();
            for (int i = 0; i < 10; i++) {
                waits.add(client.getLock("k").acquireAsync());
            }
            waits.forEach(each -> each.whenComplete((hold, error) -> waits.forEach(it -> it.cancel(false))));
            eventually("they wait", () -> server.isQueued("k", 10));
            var isFirst = new AtomicBoolean(true);
            client.post(() -> {
                if (isFirst.getAndSet(false)) {
                    throw new OutOfMemoryError("of the test");
                }
            });
            lost.get(10, TimeUnit.SECONDS);
        }
    }

    /** A stage of one grant cancels the next one, which came in the same message. */
    @Test
    void aGrantThatIsCancelledAtItsMomentIsReturnedBeforeTheNextRequest() throws Exception {
        try (var server = new Servers(); var other = Client.of(server.url); var client = Client.of(server.url)) {
            var first = other.getLock("a").acquire();
            var holder = other.activity();
            var b = other.getLock("b").acquireAsync(null, holder).get();
            var activity = client.activity();
            var one = client.getReadLock("a").acquireAsync();
            var two = client.getReadLock("a").acquireAsync(null, activity);
            var next = one.thenCompose(hold -> {
                two.cancel(false);
                var waits = client.getLock("b").acquireAsync(null, activity);
                hold.releaseAsync();
                return waits;
            });
            eventually("both wait", () -> server.isQueued("a", 2));
            var a = other.getLock("a").acquireAsync(null, holder);
            eventually("it waits", () -> server.isQueued("a", 3));
            first.close();
            a.get(10, TimeUnit.SECONDS).close();
            b.close();
            next.get(10, TimeUnit.SECONDS).close();
        }
    }
}
