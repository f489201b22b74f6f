package rlock;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/** A server, two programs that use Redisson, threads of theirs, and a connection for plain commands. */
final class World implements AutoCloseable {
    /** What Redisson asks for where no lease is named: longer than a test waits, so it never wakes by its end. */
    static final long LEASE = 120_000;

    private static final AtomicInteger NAMES = new AtomicInteger();

    final Server server;
    final Client client;
    final RedissonClient redisson;
    final RedissonClient another;
    private final Deque<AutoCloseable> closed = new ArrayDeque<>();

    World(String... settings) {
        this(LEASE, settings);
    }

    /** With another lease of Redisson's watchdog, in milliseconds. */
    World(long lease, String... settings) {
        server = closing(Server.start(settings));
        client = closing(server.connect());
        redisson = closing(single(lease));
        another = closing(single(lease));
    }

    private RedissonClient single(long lease) {
        return redisson(lease, config -> config.useSingleServer()
                .setAddress(server.address())
                .setConnectionMinimumIdleSize(1)
                .setSubscriptionConnectionMinimumIdleSize(1));
    }

    /** A program with few threads, because there are many of them here. */
    static RedissonClient redisson(long lease, Consumer<Config> topology) {
        // The codec of old versions looks into classes that are closed to it by now. Locks use none.
        var config = new Config().setCodec(StringCodec.INSTANCE).setThreads(2).setNettyThreads(2);
        config.setLockWatchdogTimeout(lease);
        topology.accept(config);
        return Redisson.create(config);
    }

    Actor actor() {
        return closing(new Actor());
    }

    Client connection() {
        return closing(server.connect());
    }

    /** The owner that this thread of the program is to the server. */
    String owner(Actor actor) throws Exception {
        return redisson.getId() + ":" + actor.id();
    }

    /** A name that no other test uses. */
    static String fresh(String name) {
        return name + ":" + NAMES.incrementAndGet();
    }

    /** The channel of unlock messages, by the rule that Redisson has for names. */
    static String channel(String key) {
        return key.contains("{") ? "redisson_lock__channel:" + key : "redisson_lock__channel:{" + key + "}";
    }

    /** Takes a lock that is held, on that thread, and returns when Redisson sleeps until its release. */
    Future<Long> waits(Actor actor, String key, Actor.Action taking) {
        long before = client.listeners(channel(key));
        var taken = actor.start(taking);
        Deadline.until("a listener of " + key, () -> client.listeners(channel(key)) > before);
        // It now asks once more, of which nothing can be seen, and then sleeps.
        Deadline.sleep(20);
        return taken;
    }


    <T extends AutoCloseable> T closing(T thing) {
        closed.push(thing);
        return thing;
    }

    private RedissonClient closing(RedissonClient program) {
        closed.push(() -> program.shutdown(0, 5, TimeUnit.SECONDS));
        return program;
    }

    @Override
    public void close() throws Exception {
        while (!closed.isEmpty()) {
            closed.pop().close();
        }
    }
}
