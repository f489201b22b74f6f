package rlock;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.Executors;
import java.util.concurrent.ExecutorService;
import java.util.function.Supplier;
import java.util.stream.Stream;
import redis.clients.jedis.BuilderFactory;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.Connection;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.RedisClusterClient;
import redis.clients.jedis.UnifiedJedis;
import redis.clients.jedis.commands.ProtocolCommand;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisMovedDataException;
import redis.clients.jedis.util.Pool;
import redis.clients.jedis.util.SafeEncoder;

/**
 * Locks through Jedis 7 or 8. Tries, renewals and releases use the client's pool. Each wait uses a connection of its own, made
 * as the pool makes its connections, but not counted in it; up to eight idle ones are kept for each server.
 */
public final class JedisLocks implements Link {
    private static final int IDLE = 8;

    private final UnifiedJedis client;
    private final Supplier<Map<String, ? extends Pool<Connection>>> nodes;
    private final Map<String, ConcurrentLinkedDeque<Connection>> idle = new ConcurrentHashMap<>();
    private final ExecutorService threads = Executors.newCachedThreadPool(task -> Locks.daemon(task, "rlock-jedis"));
    private volatile boolean closed;

    private JedisLocks(UnifiedJedis client, Supplier<Map<String, ? extends Pool<Connection>>> nodes) {
        this.client = client;
        this.nodes = nodes;
    }

    /** Locks on the server of a client. */
    public static Locks of(RedisClient client) {
        return of(client, client.getPool());
    }

    /** Locks in a cluster. */
    public static Locks of(RedisClusterClient client) {
        return new Locks(new JedisLocks(client, client::getClusterNodes));
    }

    /** Locks on the server of another client and its pool, such as {@code of(pooled, pooled.getPool())} with a JedisPooled. */
    public static Locks of(UnifiedJedis client, Pool<Connection> pool) {
        return new Locks(new JedisLocks(client, () -> Map.of("", pool)));
    }

    @SuppressWarnings("deprecation") // What replaces it differs between Jedis 7 and 8, and between single servers and clusters.
    @Override
    public CompletableFuture<Long> ask(Command command) {
        return run(() -> BuilderFactory.LONG.build(client.sendCommand(command.keys().get(0), name(command), arguments(command))));
    }

    @Override
    public CompletableFuture<Long> block(Command command, Duration limit) {
        return run(() -> {
            String node = nodes.get().keySet().iterator().next();
            for (int moves = 0; ; moves++) {
                try {
                    return block(node, command, limit);
                } catch (JedisMovedDataException e) {
                    node = e.getTargetNode().toString();
                    if (moves == 3 || !nodes.get().containsKey(node)) {
                        throw e;
                    }
                }
            }
        });
    }

    private Long block(String node, Command command, Duration limit) {
        var spare = idle.computeIfAbsent(node, any -> new ConcurrentLinkedDeque<>());
        Connection connection = spare.poll();
        if (connection == null) {
            connection = connect(nodes.get().get(node));
        }
        boolean sound = false;
        try {
            connection.setSoTimeout((int) limit.toMillis());
            Long answer = BuilderFactory.LONG.build(connection.executeCommand(
                    new CommandArguments(name(command)).addObjects((Object[]) arguments(command))));
            sound = true;
            return answer;
        } catch (JedisDataException e) { // An answer too.
            sound = true;
            throw e;
        } catch (JedisConnectionException e) { // The others may have ended with it.
            for (Connection other = spare.poll(); other != null; other = spare.poll()) {
                other.close();
            }
            throw e;
        } finally {
            if (sound && !closed && spare.size() < IDLE) {
                spare.push(connection);
            } else {
                connection.close();
            }
        }
    }

    private static Connection connect(Pool<Connection> pool) {
        try {
            return pool.getFactory().makeObject().getObject();
        } catch (RuntimeException e) {
            throw e;
        } catch (Exception e) {
            throw new JedisConnectionException(e);
        }
    }

    private static ProtocolCommand name(Command command) {
        return () -> SafeEncoder.encode(command.name());
    }

    private static String[] arguments(Command command) {
        return Stream.of(command.before(), command.keys(), command.after()).flatMap(List::stream).toArray(String[]::new);
    }

    private CompletableFuture<Long> run(Supplier<Long> call) {
        return CompletableFuture.supplyAsync(() -> {
            try {
                return call.get();
            } catch (JedisDataException e) {
                throw new LockException.Refused(e.getMessage(), e);
            } catch (RuntimeException e) {
                throw new LockException("no answer from the server: " + e.getMessage(), e);
            }
        }, threads);
    }

    @Override
    public void close() {
        closed = true;
        threads.shutdown();
        idle.values().forEach(spare -> spare.forEach(Connection::close));
    }
}
