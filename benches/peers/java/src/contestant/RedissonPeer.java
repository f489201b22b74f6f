package contestant;

import java.util.function.BiFunction;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/** Redisson's usual and its fair lock, of the version on the class path. */
record RedissonPeer(
        String name, String title, String waits, String libraries, BiFunction<RedissonClient, String, RLock> lock)
        implements Peer {
    private static final String LIBRARIES_OLD = "lib-3.12.1";
    private static final String TRIES = "pubsub, then tries; one caller of a process at a time";
    private static final String QUEUE = "server queue, pubsub of its own, then tries";

    static RedissonPeer now() {
        return new RedissonPeer("redisson", "Redisson RLock", TRIES, "lib", RedissonClient::getLock);
    }

    static RedissonPeer nowFair() {
        return new RedissonPeer("redisson-fair", "Redisson FairLock", QUEUE, "lib", RedissonClient::getFairLock);
    }

    static RedissonPeer old() {
        return new RedissonPeer(
                "redisson-3.12.1", "Redisson 3.12.1 RLock", TRIES, LIBRARIES_OLD, RedissonClient::getLock);
    }

    static RedissonPeer oldFair() {
        return new RedissonPeer(
                "redisson-3.12.1-fair", "Redisson 3.12.1 FairLock", QUEUE, LIBRARIES_OLD, RedissonClient::getFairLock);
    }

    @Override
    public String settings() {
        return "one client; lock() without a lease, so renewed: the watchdog's time is the lease of the workload (30 s);"
                + " pools for as many callers as there are, if these are more than the defaults of 64 connections"
                + " and 50 for subscriptions";
    }

    @Override
    public String library() {
        return "redisson";
    }

    @Override
    public Callers open(Workload workload) {
        int callers = workload.allCallers();
        Config config = new Config();
        config.setLockWatchdogTimeout(workload.lease().toMillis());
        // Locks do not use it. The default of 3.12.1 does not load on a new Java.
        config.setCodec(StringCodec.INSTANCE);
        config.useSingleServer()
                .setAddress(workload.url())
                .setConnectionPoolSize(Math.max(64, callers))
                // A waiter of the fair lock has a channel of its own, five share a connection.
                .setSubscriptionConnectionPoolSize(Math.max(50, callers / 5 + 1));
        RedissonClient client = Redisson.create(config);
        return () -> new RedissonCaller(client);
    }

    private final class RedissonCaller implements Caller {
        private final RedissonClient client;
        private RLock held;

        RedissonCaller(RedissonClient client) {
            this.client = client;
        }

        @Override
        public void acquire(String key) {
            held = lock.apply(client, key);
            held.lock();
        }

        @Override
        public void release() {
            held.unlock();
        }
    }
}
