package rlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Test;

/** Nothing is sent for a bad argument: there is no server here. */
class BadArgumentsTest {
    private static final Link NOWHERE = new Link() {
        @Override
        public CompletableFuture<Long> ask(Command command) {
            throw new AssertionError(command);
        }

        @Override
        public CompletableFuture<Long> block(Command command, Duration limit) {
            throw new AssertionError(command);
        }

        @Override
        public void close() {}
    };

    private static void refused(String message, UnaryOperator<Request> change, String... keys) {
        try (var locks = new Locks(NOWHERE)) {
            var request = change.apply(locks.on(keys));
            assertEquals(message, assertThrows(IllegalArgumentException.class, request::lock).getMessage());
        }
    }

    @Test
    void badArgumentsAreNamed() {
        refused("lease is PT0S, must be 1 ms to 24 h", r -> r.lease(Duration.ZERO), "k");
        refused("lease is PT24H0.001S, must be 1 ms to 24 h", r -> r.lease(Duration.ofHours(24).plusMillis(1)), "k");
        refused("wait is PT-0.001S, must be 0 to 24 h", r -> r.waitAtMost(Duration.ofMillis(-1)), "k");
        refused("wait is PT24H0.001S, must be 0 to 24 h", r -> r.waitAtMost(Duration.ofHours(24).plusMillis(1)), "k");
        refused("limit is 0, must be 1 to 1000000", r -> r.limit(0), "k");
        refused("limit is 1000001, must be 1 to 1000000", r -> r.limit(1_000_001), "k");
        refused("permits is 1, must be given together with limit", r -> r.permits(1), "k");
        refused("permits is 3, must be 1 to 2, the limit", r -> r.limit(2).permits(3), "k");
        refused("permits is 0, must be 1 to 2, the limit", r -> r.limit(2).permits(0), "k");
        refused("owner is 0 bytes long, must be 1 to 256 bytes long", r -> r.owner(""), "k");
        refused("owner is 257 bytes long, must be 1 to 256 bytes long", r -> r.owner("x".repeat(257)), "k");
        refused("owner is 'rlock:x', must be without 'rlock:' at its beginning", r -> r.owner("rlock:x"), "k");
        refused("owner is 'a b', must be without the bytes 0x00 to 0x20 and 0x7f", r -> r.owner("a b"), "k");
        refused("the number of keys is 0, must be 1 to 1024", r -> r);
        refused("the number of keys is 1025, must be 1 to 1024", r -> r, "k,".repeat(1025).split(","));
        refused("a key is 'k' twice, must be named once", r -> r, "k", "k");
        refused("shared is true, must be left out with several keys", Request::shared, "a", "b");
    }
}
