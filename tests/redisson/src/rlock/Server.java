package rlock;

import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * A server of its own on a free port, in a directory that is removed afterwards.
 *
 * <p>{@code RLOCK_SERVER} names the program ({@code redis-server} unless set), {@code RLOCK_MODULE} the module
 * ({@code target/release/librlock.so} unless set).
 */
final class Server implements AutoCloseable {
    private static final int ATTEMPTS = 20;

    final int port;
    private final Process process;
    private final Path directory;

    private Server(int port, Process process, Path directory) {
        this.port = port;
        this.process = process;
        this.directory = directory;
        // The thread that ends the virtual machine also ends the servers of tests that were broken off.
        Runtime.getRuntime().addShutdownHook(new Thread(process::destroyForcibly));
    }

    /** A server with the module; the settings are those of a command line, {@code --name value}. */
    static Server start(String... settings) {
        var all = new ArrayList<>(List.of("--save", "", "--maxmemory-policy", "noeviction"));
        all.addAll(List.of("--loadmodule", module().toString()));
        all.addAll(List.of(settings));
        return on("", all);
    }

    /** A replica of this server, that has its data. */
    Server replica() {
        var replica = start("--replicaof", "127.0.0.1 " + port);
        try (var client = replica.connect()) {
            Deadline.until("a replica", () -> client.call("INFO", "replication").toString().contains("link_status:up"));
        }
        return replica;
    }

    /** A sentinel that watches this server under the name {@code main}. */
    Server sentinel() {
        var configuration = """
                sentinel monitor main 127.0.0.1 %d 1
                sentinel down-after-milliseconds main 500
                sentinel failover-timeout main 5000
                """;
        return on(configuration.formatted(port), List.of("--sentinel"));
    }

    private static Server on(String configuration, List<String> settings) {
        for (int attempt = 1; ; attempt++) {
            try {
                return tryStart(configuration, settings);
            } catch (IllegalStateException failure) {
                // Another program may have taken the port meanwhile.
                if (attempt == ATTEMPTS || !failure.getMessage().contains("Address already in use")) {
                    throw failure;
                }
            } catch (IOException failure) {
                throw new UncheckedIOException(failure);
            }
        }
    }

    private static Server tryStart(String text, List<String> settings) throws IOException {
        int port = freePort();
        var directory = Files.createTempDirectory("rlock-redisson-");
        var configuration = Files.writeString(directory.resolve("server.conf"), text);
        var program = System.getenv().getOrDefault("RLOCK_SERVER", "redis-server");
        var command = new ArrayList<>(List.of(program, configuration.toString()));
        command.addAll(List.of("--port", "" + port, "--bind", "127.0.0.1", "--dir", directory.toString()));
        command.addAll(settings);
        var log = directory.resolve("log").toFile();
        var process = new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(log).start();
        var server = new Server(port, process, directory);
        server.untilItAnswers(log);
        return server;
    }

    private void untilItAnswers(File log) throws IOException {
        var deadline = new Deadline(Duration.ofSeconds(30));
        while (process.isAlive() && !deadline.isOver()) {
            try (var client = connect()) {
                client.call("PING");
                return;
            } catch (RuntimeException notYet) {
                Deadline.nap();
            }
        }
        var output = Files.readString(log.toPath());
        close();
        throw new IllegalStateException("the server did not start: " + output);
    }

    Client connect() {
        return new Client(port);
    }

    /** The address as Redisson wants it. */
    String address() {
        return "redis://127.0.0.1:" + port;
    }

    /** Ends the server. A second time changes nothing. */
    @Override
    public void close() {
        if (!Files.exists(directory)) {
            return;
        }
        process.destroy();
        try {
            if (!process.waitFor(5, TimeUnit.SECONDS)) {
                process.destroyForcibly().waitFor();
            }
            try (var files = Files.walk(directory)) {
                files.sorted(Comparator.reverseOrder()).map(Path::toFile).forEach(File::delete);
            }
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    static int freePort() {
        try (var socket = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            return socket.getLocalPort();
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    private static Path module() {
        var named = System.getenv("RLOCK_MODULE");
        var path = named != null ? Path.of(named) : Path.of("../../../target/release/librlock.so");
        if (!Files.exists(path)) {
            throw new IllegalStateException("there is no " + path.toAbsolutePath().normalize() + " yet: make build");
        }
        return path.toAbsolutePath().normalize();
    }
}
