package rlock;

import static rlock.Servers.pause;

import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** What the client's thread survives, and what happens to its callers at its end. */
@Timeout(60)
class ThreadTest {
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
}
