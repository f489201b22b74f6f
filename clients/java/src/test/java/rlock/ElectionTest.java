package rlock;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static rlock.Servers.ask;
import static rlock.Servers.eventually;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import rlock.Election.Change;
import rlock.Servers.Network;

/** Leaders and their observers, on real servers. */
@Timeout(60)
class ElectionTest {
    private static final byte[] BYTES = {(byte) 0xff, 0, ' '};

    /** The next change, within the time limit of a test. */
    private static Change next(Changes changes) throws Exception {
        return changes.poll(Duration.ofSeconds(20)).orElseThrow();
    }

    static String shown(Changes changes) throws Exception {
        var change = next(changes);
        return change.leader().map(Election.Proclaimed::text).orElse("nobody") + (change.isMissed() ? ", missed" : "");
    }

    private static String code(Changes changes) {
        return assertThrows(RlockException.class, () -> next(changes)).code();
    }

    private static boolean isObserved(Servers server) {
        return ask(server.port(), "PUBSUB", "NUMSUB", "rlock:value:{k}").endsWith(":1\r\n");
    }

    @Test
    void leadersFollowOneAnotherAndEachObserverReceivesEach() throws Exception {
        try (var server = new Servers(); var a = Client.of(server.url); var b = Client.of(server.url);
                var other = Client.of(server.url)) {
            var observers = new ArrayList<Changes>();
            for (var client : List.of(a, b, other, other)) {
                observers.add(client.election("k").observe());
            }
            for (var each : observers) {
                assertEquals("nobody", shown(each));
            }
            var first = a.election("k").campaign("a:1");
            assertTrue(other.election("k").tryCampaign("c", Duration.ZERO).isEmpty());
            assertTrue(other.election("k").tryCampaign("c", Duration.ofMillis(20)).isEmpty());
            var waits = b.election("k").campaignAsync("b:1");
            eventually("it waits", () -> server.isQueued("k", 1));
            first.proclaim("a:2");
            var leader = other.election("k").leader().orElseThrow();
            assertEquals(List.of(first.fence(), "a:2", first.owner()), List.of(leader.fence(), leader.text(), leader.owner()));
            assertTrue(leader.timeLeft().toSeconds() >= 25 && leader.timeLeft().toSeconds() <= 30, leader.timeLeft()::toString);
            first.resign();
            try (var second = waits.get(10, TimeUnit.SECONDS)) {
                assertTrue(second.fence() > first.fence());
                second.proclaim(BYTES);
                assertArrayEquals(BYTES, other.election("k").leader().orElseThrow().value());
            }
            for (var each : observers) {
                for (var expected : List.of("a:1", "a:2", "b:1", new String(BYTES, "UTF-8"), "nobody")) {
                    assertEquals(expected, shown(each));
                }
            }
            assertTrue(other.election("k").leader().isEmpty());
            assertEquals(3, server.connections());
        }
    }

    @Test
    void termsAndBadValues() throws Exception {
        try (var server = new Servers(); var client = Client.of(server.url)) {
            var election = client.election("k").with(Terms.standard().fixedLease(Duration.ofMillis(400)));
            var tooLong = new byte[1025];
            var error = assertThrows(IllegalArgumentException.class, () -> election.campaign(tooLong));
            assertTrue(error.getMessage().contains("1025 bytes"), error::getMessage);
            assertThrows(NullPointerException.class, () -> election.campaign((byte[]) null));
            assertThrows(NullPointerException.class, () -> election.tryCampaign("x", null));
            assertThrows(IllegalArgumentException.class, () -> election.campaign("half \ud800"));
            var leadership = election.campaign("");
            assertThrows(IllegalArgumentException.class, () -> leadership.proclaim(tooLong));
            leadership.check();
            var lost = new CompletableFuture<LostException>();
            leadership.onLost(lost::complete, Runnable::run);
            lost.get(10, TimeUnit.SECONDS);
            assertThrows(LostException.class, () -> leadership.proclaim("x"));
            assertThrows(LostException.class, leadership::resign);
        }
    }

    @Test
    void anObserverBeginsAgainAfterABrokenConnection() throws Exception {
        try (var server = new Servers(); var net = new Network(server.port()); var client = Client.of(net.url());
                var leader = Client.of(server.url); var changes = client.election("k").observe()) {
            assertEquals("nobody", shown(changes));
            net.cut();
            assertEquals("nobody, missed", shown(changes));
            var leadership = leader.election("k").campaign(BYTES);
            var change = next(changes);
            assertArrayEquals(BYTES, change.leader().orElseThrow().value());
            assertTrue(change.leader().orElseThrow().fence() == leadership.fence() && !change.isMissed());
            ask(server.port(), "RLOCK.FORCE", "k");
            assertEquals("nobody", shown(changes));
            eventually("the loss is known", () -> !leadership.isValid());
        }
    }

    @Test
    void anObserverThatIsClosedLeavesNothing() throws Exception {
        try (var server = new Servers(); var client = Client.of(server.url)) {
            var changes = client.election("k").observe();
            try (changes) {
                assertEquals("nobody", shown(changes));
                assertTrue(isObserved(server));
            }
            eventually("it has left", () -> !isObserved(server));
            assertEquals("Closed", code(changes));

            try (var other = client.election("k").observe()) {
                assertEquals("nobody", shown(other));
                var waits = other.nextAsync();
                other.close();
                assertEquals("Closed", ((RlockException) assertThrows(Exception.class, waits::get).getCause()).code());
            }
            eventually("it has left", () -> !isObserved(server));

            ask(server.port(), "RLOCK.ACQUIRE", "k", "other", "60000");
            var candidate = client.election("k").campaignAsync("x");
            eventually("it waits", () -> server.isQueued("k", 1));
            candidate.cancel(false);
            eventually("it has left", () -> server.isQueued("k", 0));
        }
    }

    @Test
    void anInterruptedOrAbandonedWaitTakesNoChange() throws Exception {
        try (var server = new Servers(); var client = Client.of(server.url); var changes = client.election("k").observe()) {
            assertEquals("nobody", shown(changes));
            assertTrue(changes.poll(Duration.ZERO).isEmpty() && changes.poll(Duration.ofMillis(20)).isEmpty());
            changes.nextAsync().cancel(false);
            Thread.currentThread().interrupt();
            assertThrows(InterruptedException.class, changes::next);
            var waits = changes.nextAsync();
            client.election("k").campaign("v").resign();
            assertEquals("v", waits.get(10, TimeUnit.SECONDS).leader().orElseThrow().text());
            assertEquals("nobody", shown(changes));
        }
    }

    @Test
    void anObserverEndsWithItsClient() throws Exception {
        try (var server = new Servers(); var client = Client.of(server.url)) {
            var changes = client.election("k").observe();
            var untaken = client.election("k").observe();
            assertEquals("nobody", shown(changes));
            var waits = changes.nextAsync();
            client.metrics();
            client.close();
            assertEquals("Closed", ((RlockException) assertThrows(Exception.class, waits::get).getCause()).code());
            assertEquals("nobody", shown(untaken));
            for (var each : List.of(changes, untaken, client.election("k").observe())) {
                assertEquals("Closed", code(each));
                each.close();
            }
        }
    }

    @Test
    void untakenChangesHaveALimitAndTheNextChangeSaysSo() throws Exception {
        try (var server = new Servers(); var client = Client.of(server.url); var changes = client.election("k").observe()) {
            assertEquals("nobody", shown(changes));
            try (var leadership = client.election("k").campaign("0")) {
                for (int i = 1; i <= 1100; i++) {
                    leadership.proclaim("" + i);
                }
                assertEquals("77, missed", shown(changes));
                for (int i = 78; i <= 1100; i++) {
                    assertEquals("" + i, shown(changes));
                }
            }
            assertEquals("nobody", shown(changes));
        }
    }

    @Test
    void aRefusalOfTheServerIsReported() throws Exception {
        try (var server = new Servers()) {
            ask(server.port(), "ACL", "SETUSER", "app", "on", ">secret", "~*", "&rlock:client:*", "+@all");
            try (var client = Client.of(server.url.replace("redis://", "redis://app:secret@"));
                    var changes = client.election("k").observe()) {
                var error = assertThrows(RlockException.class, () -> next(changes));
                assertTrue(error.code().equals("Denied") && error.getMessage().contains("channel"), error::toString);
                client.election("k").campaign("v").resign();
            }
        }
    }
}
