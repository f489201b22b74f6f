package rlock;

import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.resource.ClientResources;
import org.junit.jupiter.api.Test;

class LettuceLocksTest extends LocksTest {
    private static final ClientResources RESOURCES = ClientResources.create();

    @Override
    Locks connect(int port) {
        return LettuceLocks.of(RedisClient.create(RESOURCES, RedisURI.create("127.0.0.1", port)));
    }

    @Test
    void clusterClientFindsTheServerOfAKey() throws Exception {
        try (var node = Cluster.ofOne(); var client = RedisClusterClient.create(RESOURCES, RedisURI.create("127.0.0.1", node.port));
                var mine = LettuceLocks.of(client)) {
            Cluster.works(mine, node);
        }
    }
}
