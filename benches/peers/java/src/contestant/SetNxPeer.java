package contestant;

import java.net.URI;
import redis.clients.jedis.ConnectionPoolConfig;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.params.SetParams;

/** The two plain commands. */
final class SetNxPeer implements Peer {
    @Override
    public String name() {
        return "set-nx-px";
    }

    @Override
    public String title() {
        return "SET NX PX, DEL";
    }

    @Override
    public String waits() {
        return "does not wait";
    }

    @Override
    public String settings() {
        return "a yardstick: the two plain commands by jedis, a connection for each caller; a lock that is held is an error";
    }

    @Override
    public String library() {
        return "jedis";
    }

    @Override
    public Callers open(Workload workload) {
        RedisClient jedis = pooled(workload);
        SetParams terms = SetParams.setParams().nx().px(workload.lease().toMillis());
        return () -> new SetNxCaller(jedis, terms);
    }

    /** A connection for each caller, and some more. */
    static RedisClient pooled(Workload workload) {
        ConnectionPoolConfig pool = new ConnectionPoolConfig();
        pool.setMaxTotal(workload.allCallers() + 4);
        pool.setMaxIdle(workload.allCallers() + 4);
        URI server = URI.create(workload.url());
        return RedisClient.builder().hostAndPort(server.getHost(), server.getPort()).poolConfig(pool).build();
    }

    private static final class SetNxCaller implements Caller {
        private final RedisClient jedis;
        private final SetParams terms;
        private String held;

        SetNxCaller(RedisClient jedis, SetParams terms) {
            this.jedis = jedis;
            this.terms = terms;
        }

        @Override
        public void acquire(String key) {
            if (jedis.set(key, "holder", terms) == null) {
                throw new IllegalStateException(key + " is held");
            }
            held = key;
        }

        @Override
        public void release() {
            jedis.del(held);
        }
    }
}
