package contestant;

import java.time.Duration;
import redis.clients.jedis.RedisClient;
import rlock.Held;
import rlock.JedisLocks;
import rlock.Locks;

/** Ours: the helper for jedis. */
final class RlockPeer implements Peer {
    @Override
    public String name() {
        return "rlock-java";
    }

    @Override
    public String title() {
        return "rlock, clients/java";
    }

    @Override
    public String waits() {
        return "server queue";
    }

    @Override
    public String settings() {
        return "jedis with a connection for each caller, one Locks for all; lease from the workload (30 s), renewed";
    }

    @Override
    public String library() {
        return "";
    }

    @Override
    public Callers open(Workload workload) {
        RedisClient jedis = SetNxPeer.pooled(workload);
        Locks locks = JedisLocks.of(jedis);
        return () -> new RlockCaller(locks, workload.lease());
    }

    private static final class RlockCaller implements Caller {
        private final Locks locks;
        private final Duration lease;
        private Held held;

        RlockCaller(Locks locks, Duration lease) {
            this.locks = locks;
            this.lease = lease;
        }

        @Override
        public void acquire(String key) throws Exception {
            held = locks.on(key).lease(lease).lock();
        }

        @Override
        public void release() {
            held.close();
        }
    }
}
