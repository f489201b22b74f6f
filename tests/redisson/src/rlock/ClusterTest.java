package rlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.redisson.api.RedissonClient;

/** Three masters. Newer versions of Redisson listen to sharded channels there, older ones to those of the whole cluster. */
class ClusterTest {
    private static final boolean IS_SHARDED = !System.getProperty("redisson.version").startsWith("3.12.");
    private static final int SLOTS = 16_384;

    private static final List<Server> servers = new ArrayList<>();
    private static final List<Client> clients = new ArrayList<>();
    private static RedissonClient redisson;

    @BeforeAll
    static void start() {
        servers.addAll(Server.cluster(3));
        servers.forEach(server -> clients.add(server.connect()));
        redisson = World.redisson(World.LEASE, config -> config.useClusterServers()
                .addNodeAddress(servers.stream().map(Server::address).toArray(String[]::new))
                .setMasterConnectionMinimumIdleSize(1)
                .setSlaveConnectionMinimumIdleSize(1));
    }

    @AfterAll
    static void stop() {
        redisson.shutdown();
        clients.forEach(Client::close);
        servers.forEach(Server::close);
    }

    private static int first(int node) {
        return node * SLOTS / 3;
    }

    /** A name whose slot is served by that node. */
    private static String keyOn(int node) {
        while (true) {
            var key = World.fresh("a");
            var slot = (Long) clients.get(0).call("CLUSTER", "KEYSLOT", key);
            if (slot >= first(node) && slot < first(node + 1)) {
                return key;
            }
        }
    }

    private static void publish(String kind) {
        clients.forEach(each -> each.call("CONFIG", "SET", "rlock.publish", kind));
    }

    private static long listeners(String key) {
        return clients.stream().mapToLong(each -> each.listeners(World.channel(key))).sum();
    }

    private static void wakesBothWays(int node) throws Exception {
        var client = clients.get(node);
        try (var thread = new Actor()) {
            var key = keyOn(node);
            var lock = redisson.getLock(key);
            thread.run(lock::lock);
            assertNull(client.acquire(key, "here", World.LEASE));
            var granted = client.waiting(key, "here", World.LEASE);
            thread.run(lock::unlock);
            assertNotNull(Actor.result(granted));
            assertFalse(thread.is(lock::tryLock));

            var taken = thread.start(lock::lock);
            Deadline.until("a listener", () -> listeners(key) == 1);
            Deadline.sleep(20);
            long start = System.nanoTime();
            assertEquals(0, client.release(key, "here"));
            long milliseconds = (Actor.result(taken) - start) / 1_000_000;
            assertTrue(milliseconds <= Calm.PROMPT, () -> "woken after " + milliseconds + " ms");
            thread.run(lock::unlock);
        }
    }

    @Test
    void eachNodeWakesBothKinds() throws Exception {
        publish(IS_SHARDED ? "auto" : "publish");
        for (int node = 0; node < 3; node++) {
            int each = node;
            Calm.run(() -> wakesBothWays(each));
        }
    }

    @Test
    void bothKindsOfMessagesWakeEveryVersion() throws Exception {
        publish("both");
        Calm.run(() -> wakesBothWays(1));
    }

    @Test
    void redissonListensToTheKindOfChannelThatIsDocumented() throws Exception {
        var key = keyOn(2);
        assertNotNull(clients.get(2).acquire(key, "here", World.LEASE));
        try (var thread = new Actor()) {
            thread.start(redisson.getLock(key)::lock);
            Deadline.until("a listener", () -> listeners(key) == 1);
            var kind = IS_SHARDED ? "SHARDNUMSUB" : "NUMSUB";
            var count = clients.stream().mapToLong(each ->
                    (Long) ((List<?>) each.call("PUBSUB", kind, World.channel(key))).get(1)).sum();
            assertEquals(1, count);
            publish("both");
            assertEquals(0, clients.get(2).release(key, "here"));
            thread.run(redisson.getLock(key)::unlock);
        }
    }

    @Test
    void severalLocksOfOneSlotAreAMultiLocks() throws Exception {
        publish("both");
        var tag = "{" + keyOn(1) + "}";
        var client = clients.get(1);
        var both = redisson.getMultiLock(redisson.getLock(tag + "a"), redisson.getLock(tag + "b"));
        try (var thread = new Actor()) {
            thread.run(both::lock);
            var granted = client.later("RLOCK.MACQUIRE", "here", World.LEASE, 2, tag + "a", tag + "b", "WAIT", 0);
            Deadline.until("a place", () -> client.info(tag + "a").queued() == 1);
            thread.run(both::unlock);
            assertNotNull(Actor.result(granted));
            assertFalse(thread.is(both::tryLock));
            assertEquals(2L, client.call("RLOCK.MRELEASE", "here", 2, tag + "a", tag + "b"));
            assertTrue(thread.is(both::tryLock));
        }
    }
}
