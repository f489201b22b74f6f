package rlock;

import static org.junit.jupiter.api.Assertions.assertThrows;

import java.nio.charset.StandardCharsets;
import java.time.Duration;

/** A cluster of one node. */
final class Cluster {
    private Cluster() {}

    static Server ofOne() {
        var node = new Server("--cluster-enabled", "yes", "--loadmodule", Server.MODULE.toString());
        try (var seen = new Seen(node.port)) {
            seen.call("CLUSTER", "ADDSLOTSRANGE", "0", "16383");
            Eventually.so("the cluster is up", () -> new String((byte[]) seen.call("CLUSTER", "INFO"), StandardCharsets.US_ASCII)
                    .contains("cluster_state:ok"));
        }
        return node;
    }

    static void works(Locks locks, Server node) throws Exception {
        try (var seen = new Seen(node.port)) {
            var both = locks.on("{k}1", "{k}2").lease(Duration.ofMillis(1500)).lock();
            var task = new LocksTest.Task<>(() -> locks.on("{k}1").lock());
            seen.queued("{k}1", 1);
            Thread.sleep(2500); // More than the lease.
            both.check();
            both.close();
            task.get().close();
            seen.free("{k}1");
        }
        assertThrows(LockException.class, () -> locks.on("a", "b").lease(Duration.ofMillis(300)).lock());
    }
}
