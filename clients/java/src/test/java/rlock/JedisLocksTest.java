package rlock;


import java.util.Set;
import org.junit.jupiter.api.Test;
import redis.clients.jedis.ConnectionPoolConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.RedisClusterClient;

class JedisLocksTest extends LocksTest {
    @Override
    Locks connect(int port) {
        return JedisLocks.of(RedisClient.create("127.0.0.1", port));
    }

    @Test
    void poolOfOneDoesNotBlockItself() throws Exception {
        var config = new ConnectionPoolConfig();
        config.setMaxTotal(1);
        try (var client = RedisClient.builder().hostAndPort("127.0.0.1", server.port).poolConfig(config).build();
                var mine = JedisLocks.of(client)) {
            var holder = mine.on("pool").lease(ms(1500)).lock();
            var one = new Task<>(() -> mine.on("pool").lock());
            seen.queued("pool", 1);
            Thread.sleep(2000); // More than the lease.
            holder.check();
            holder.close();
            one.get().close();
        }
    }

    @Test
    void clusterClientFindsTheServerOfAKey() throws Exception {
        try (var node = Cluster.ofOne(); var client = RedisClusterClient.create(Set.of(new HostAndPort("127.0.0.1", node.port)));
                var mine = JedisLocks.of(client)) {
            Cluster.works(mine, node);
        }
    }
}
