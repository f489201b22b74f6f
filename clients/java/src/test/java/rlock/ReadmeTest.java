package rlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisURI;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.IntegerOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInstance;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.commands.ProtocolCommand;
import redis.clients.jedis.util.SafeEncoder;

@Execution(ExecutionMode.CONCURRENT)
@TestInstance(TestInstance.Lifecycle.PER_CLASS)
class ReadmeTest {
    private Server server;
    private Seen seen;

    @BeforeAll
    void start() {
        server = Server.withModule();
        seen = new Seen(server.port);
    }

    @AfterAll
    void stop() {
        seen.close();
        server.close();
    }

    @Test
    void readmeShowsOnlyCodeThatIsRunHere() throws Exception {
        String run = Files.readString(Path.of("src/test/java/rlock/ReadmeTest.java")).replaceAll("(?m)^ +", "");
        var blocks = Files.readString(Path.of("README.md")).split("```java\n");
        assertEquals(5, blocks.length - 1);
        for (String block : List.of(blocks).subList(1, blocks.length)) {
            String code = block.substring(0, block.indexOf("```")).replaceAll("(?m)^ +", "");
            assertTrue(run.contains(code), "nobody runs this: " + code);
        }
    }

    private static void store(long fence) {
        assertTrue(fence > 0);
    }

    private static void stopWork() {
        throw new AssertionError("lost");
    }

    @Test
    void examplesHoldTheLock() throws Exception {
        try (var client = RedisClient.create("127.0.0.1", server.port)) {
            try (Locks locks = JedisLocks.of(client);
                    Held held = locks.lock("invoice:7", Duration.ofSeconds(30), Duration.ofSeconds(10))) {
                held.check();
                store(held.fence());
            }
            try (Locks locks = JedisLocks.of(client)) {
                several(locks);
            }
        }
        seen.free("invoice:7");
    }

    private static void several(Locks locks) throws InterruptedException {
        try (Held three = locks.on("gpu").limit(4).permits(3).onLoss(() -> stopWork()).lock();
                Held both = locks.on("account:1", "account:2").owner(three.owner()).lock()) {
            store(both.fence());
        } catch (LockException.Refused refused) {
            if (refused.word().equals("DEADLOCK")) {
                // Everything is released: begin again.
            }
            throw refused;
        }
    }

    @Test
    void lettuceTakesTheSameLock() throws Exception {
        var client = io.lettuce.core.RedisClient.create(RedisURI.create("127.0.0.1", server.port));
        try (Locks locks = LettuceLocks.of(client)) {
            locks.on("lettuce").lock().close();
        }
        client.shutdown();
    }

    interface Work {
        void run(long fence) throws Exception;
    }

    interface Recipe {
        void withLock(String key, Work work) throws Exception;
    }

    private void works(String key, Recipe recipe) throws Exception {
        seen.call("RLOCK.ACQUIRE", key, "holder", "60000");
        var task = new LocksTest.Task<>(() -> {
            recipe.withLock(key, fence -> assertTrue(seen.info(key).contains("fence=" + fence), seen.info(key)));
            return null;
        });
        seen.queued(key, 1);
        Thread.sleep(3000); // More than Jedis's usual time limit of a reply.
        seen.call("RLOCK.RELEASE", key, "holder");
        assertNull(task.get());
        seen.free(key);
    }

    @Test
    void recipeForJedisWaitsAndCleansUp() throws Exception {
        var address = new HostAndPort("127.0.0.1", server.port);
        var client = RedisClient.create(address);
        works("jedis", (key, work) -> withLockByJedis(client, address, key, work));
        client.close();
    }

    private static ProtocolCommand named(String command) {
        return () -> SafeEncoder.encode(command);
    }

    @SuppressWarnings("deprecation")
    private void withLockByJedis(RedisClient client, HostAndPort address, String key, Work work) throws Exception {
        var owner = "job:" + UUID.randomUUID();
        var config = DefaultJedisClientConfig.builder().socketTimeoutMillis(15_000).build(); // Longer than the wait.
        try (var waits = new Jedis(address, config)) { // A connection of its own, outside the pool.
            var fence = (Long) waits.sendCommand(named("RLOCK.ACQUIRE"), key, owner, "30000", "WAIT", "10000");
            if (fence == null) {
                throw new IllegalStateException("the wait is over");
            }
            work.run(fence); // At most 30 s, or send RLOCK.RENEW every 10 s.
        } finally {
            client.sendCommand(named("RLOCK.CANCEL"), key, owner);
            client.sendCommand(named("RLOCK.RELEASE"), key, owner);
        }
    }

    @Test
    void recipeForLettuceWaitsAndCleansUp() throws Exception {
        var client = io.lettuce.core.RedisClient.create(RedisURI.create("127.0.0.1", server.port));
        var connection = client.connect();
        works("salad", (key, work) -> withLockByLettuce(client, connection, key, work));
        client.shutdown();
    }

    private RedisFuture<Long> send(StatefulRedisConnection<String, String> on, String command, String... arguments) {
        ProtocolKeyword name = () -> command.getBytes(StandardCharsets.US_ASCII);
        var args = new CommandArgs<>(StringCodec.UTF8).addKey(arguments[0]);
        List.of(arguments).subList(1, arguments.length).forEach(args::add);
        return on.async().dispatch(name, new IntegerOutput<>(StringCodec.UTF8), args);
    }

    private void withLockByLettuce(io.lettuce.core.RedisClient client, StatefulRedisConnection<String, String> connection,
            String key, Work work) throws Exception {
        var owner = "job:" + UUID.randomUUID();
        try (var waits = client.connect()) { // A connection of its own: what is sent after a wait stands behind it.
            var fence = send(waits, "RLOCK.ACQUIRE", key, owner, "30000", "WAIT", "10000").get(15, TimeUnit.SECONDS);
            if (fence == null) {
                throw new IllegalStateException("the wait is over");
            }
            work.run(fence); // At most 30 s, or send RLOCK.RENEW every 10 s.
        } finally {
            send(connection, "RLOCK.CANCEL", key, owner);
            send(connection, "RLOCK.RELEASE", key, owner).get(15, TimeUnit.SECONDS);
        }
    }
}
