package rlock;

import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisURI;
import io.lettuce.core.api.StatefulConnection;
import io.lettuce.core.api.async.BaseRedisAsyncCommands;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.IntegerOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.Executors;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Supplier;

/**
 * Locks through Lettuce. Tries, renewals and releases share one connection, opened here with the client's settings. Each wait
 * uses a connection of its own; up to eight idle ones are kept.
 */
public final class LettuceLocks implements Link {
    private static final int IDLE = 8;
    private static final Duration SILENCE = Duration.ofSeconds(1);

    private record Wire(StatefulConnection<String, String> connection, BaseRedisAsyncCommands<String, String> commands) {}

    private final Supplier<Wire> connect;
    private final ConcurrentLinkedDeque<Wire> idle = new ConcurrentLinkedDeque<>();
    private final ExecutorService threads = Executors.newCachedThreadPool(task -> Locks.daemon(task, "rlock-lettuce"));
    private volatile Wire main;
    private volatile boolean closed;

    private LettuceLocks(Supplier<Wire> connect) {
        this.connect = connect;
        main = connect.get();
    }

    /** Locks on the server of a client that was made with a URI. Opens a connection. */
    public static Locks of(RedisClient client) {
        return new Locks(new LettuceLocks(() -> {
            var connection = client.connect(StringCodec.UTF8);
            return new Wire(connection, connection.async());
        }));
    }

    /** Locks on the server of a URI, also by Sentinel. Opens a connection. */
    public static Locks of(RedisClient client, RedisURI uri) {
        return new Locks(new LettuceLocks(() -> {
            var connection = client.connect(StringCodec.UTF8, uri);
            return new Wire(connection, connection.async());
        }));
    }

    /** Locks in a cluster. Opens a connection. */
    public static Locks of(RedisClusterClient client) {
        return new Locks(new LettuceLocks(() -> {
            var connection = client.connect(StringCodec.UTF8);
            return new Wire(connection, connection.async());
        }));
    }

    @Override
    public CompletableFuture<Long> ask(Command command) {
        Wire wire = main;
        return send(wire, command)
                .orTimeout(SILENCE.toMillis(), TimeUnit.MILLISECONDS)
                .whenComplete((answer, failure) -> {
                    if (failure instanceof TimeoutException) {
                        CompletableFuture.runAsync(() -> replace(wire), threads);
                    }
                })
                .exceptionally(LettuceLocks::fail);
    }

    @Override
    public CompletableFuture<Long> block(Command command, Duration limit) {
        return CompletableFuture.supplyAsync(this::free, threads)
                .thenCompose(wire -> send(wire, command)
                        .orTimeout(limit.toMillis(), TimeUnit.MILLISECONDS)
                        .whenComplete((answer, failure) -> settle(wire, failure)))
                .exceptionally(LettuceLocks::fail);
    }

    /** All that is sent on one connection stands behind what is not answered: a silent one would hold up every release. */
    private synchronized void replace(Wire silent) {
        if (main == silent && !closed) {
            main = connect.get(); // Fails while the server is away: the old one then connects again by itself.
            silent.connection().closeAsync();
        }
    }

    private Wire free() {
        Wire wire = idle.poll();
        return wire != null ? wire : connect.get();
    }

    /** A connection that was answered may be used again. */
    private void settle(Wire wire, Throwable failure) {
        boolean answered = failure == null || failure instanceof RedisCommandExecutionException;
        if (answered && !closed && idle.size() < IDLE) {
            idle.push(wire);
        } else {
            wire.connection().closeAsync();
        }
    }

    private static CompletableFuture<Long> send(Wire wire, Command command) {
        var arguments = new CommandArgs<>(StringCodec.UTF8);
        command.before().forEach(arguments::add);
        command.keys().forEach(arguments::addKey);
        command.after().forEach(arguments::add);
        ProtocolKeyword name = () -> command.name().getBytes(StandardCharsets.US_ASCII);
        return wire.commands().dispatch(name, new IntegerOutput<>(StringCodec.UTF8), arguments)
                .toCompletableFuture();
    }

    private static Long fail(Throwable failure) {
        Throwable cause = failure instanceof CompletionException ? failure.getCause() : failure;
        if (cause instanceof RedisCommandExecutionException) {
            throw new LockException.Refused(cause.getMessage(), cause);
        }
        throw new LockException("no answer from the server: " + cause.getMessage(), cause);
    }

    @Override
    public synchronized void close() {
        closed = true;
        threads.shutdown();
        main.connection().closeAsync();
        idle.forEach(wire -> wire.connection().closeAsync());
    }
}
