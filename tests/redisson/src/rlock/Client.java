package rlock;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.Connection;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.RedisProtocol;

/** One connection that sends plain commands, as any client in any language can. Texts are UTF-8. */
final class Client implements AutoCloseable {
    private final int port;
    private final Connection connection;

    Client(int port) {
        this.port = port;
        var config = DefaultJedisClientConfig.builder().protocol(RedisProtocol.RESP2).connectionTimeoutMillis(5000);
        // A wait is answered when it is over, so the connection has no limit of its own.
        connection = new Connection(new HostAndPort("127.0.0.1", port), config.socketTimeoutMillis(0).build());
    }

    /** The reply: a Long, a String, a List of replies, or null. An error is thrown. */
    Object call(String command, Object... arguments) {
        var words = new CommandArguments(() -> bytes(command));
        for (var each : arguments) {
            words.add(bytes(each.toString()));
        }
        return text(connection.executeCommand(words));
    }

    /** Asks on a connection of its own, which may block. */
    Future<Object> later(String command, Object... arguments) {
        var reply = new CompletableFuture<Object>();
        var thread = new Thread(() -> {
            try (var own = new Client(port)) {
                reply.complete(own.call(command, arguments));
            } catch (RuntimeException failure) {
                reply.completeExceptionally(failure);
            }
        });
        thread.setDaemon(true);
        thread.start();
        return reply;
    }

    /** The fence, or null. */
    Long acquire(String key, String owner, long lease, Object... options) {
        return (Long) call("RLOCK.ACQUIRE", words(options, key, owner, lease));
    }

    /** Waits without limit on a connection of its own, and stands in the queue when this returns. */
    Future<Object> waiting(String key, String owner, long lease) {
        long before = info(key).queued();
        var reply = later("RLOCK.ACQUIRE", key, owner, lease, "WAIT", 0);
        Deadline.until("a place in the queue of " + key, () -> reply.isDone() || info(key).queued() > before);
        return reply;
    }

    Long release(String key, String owner) {
        return (Long) call("RLOCK.RELEASE", key, owner);
    }

    Info info(String key) {
        return Info.of(map(call("RLOCK.INFO", key)));
    }

    /** How many connections listen on a channel, of {@code SUBSCRIBE} and of {@code SSUBSCRIBE}. */
    long listeners(String channel) {
        var ordinary = (List<?>) call("PUBSUB", "NUMSUB", channel);
        var sharded = (List<?>) call("PUBSUB", "SHARDNUMSUB", channel);
        return (Long) ordinary.get(1) + (Long) sharded.get(1);
    }

    /** What the subscribed connection hears next. */
    Object hears() {
        return text(connection.getUnflushedObject());
    }

    /** A map, which the older protocol sends as a flat list of names and values. */
    static Map<String, Object> map(Object flat) {
        var map = new TreeMap<String, Object>();
        for (var each = ((List<?>) flat).iterator(); each.hasNext(); ) {
            map.put((String) each.next(), each.next());
        }
        return map;
    }

    static Object[] words(Object[] more, Object... first) {
        var all = new ArrayList<>(List.of(first));
        all.addAll(List.of(more));
        return all.toArray();
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static Object text(Object reply) {
        if (reply instanceof byte[] bytes) {
            return new String(bytes, StandardCharsets.UTF_8);
        }
        if (reply instanceof List<?> list) {
            return list.stream().map(Client::text).collect(ArrayList::new, ArrayList::add, ArrayList::addAll);
        }
        return reply;
    }

    @Override
    public void close() {
        connection.close();
    }
}
