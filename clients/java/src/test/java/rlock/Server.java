package rlock;

import java.io.IOException;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.exceptions.JedisException;

/** A real server in a directory of its own. */
final class Server implements AutoCloseable {
    static final Path MODULE = Path.of(System.getenv().getOrDefault("RLOCK_MODULE", "../../target/release/librlock.so")).toAbsolutePath();

    final int port;
    private final Path directory;
    private final List<String> arguments;
    private Process process;

    Server(String... arguments) {
        this.arguments = List.of(arguments);
        try (var free = new ServerSocket(0)) {
            port = free.getLocalPort();
            directory = Files.createTempDirectory("rlock-java");
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
        start();
    }

    static Server withModule() {
        return new Server("--loadmodule", MODULE.toString());
    }

    void start() {
        var program = System.getenv().getOrDefault("RLOCK_SERVER", "redis-server");
        var command = new ArrayList<>(List.of(program, "--port", String.valueOf(port), "--bind", "127.0.0.1", "--dir",
                directory.toString(), "--save", "", "--logfile", directory.resolve("log").toString()));
        command.addAll(arguments);
        try {
            process = new ProcessBuilder(command).start();
            Eventually.so("the server is ready", () -> answers() || !process.isAlive());
            if (!process.isAlive()) {
                throw new IllegalStateException(program + ": " + Files.readString(directory.resolve("log")));
            }
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }

    private boolean answers() {
        try (var jedis = new Jedis("127.0.0.1", port)) {
            return "PONG".equals(jedis.ping());
        } catch (JedisException e) {
            return false;
        }
    }

    void signal(String name) throws Exception {
        new ProcessBuilder("kill", "-" + name, String.valueOf(process.pid())).start().waitFor();
    }

    void kill() {
        process.destroyForcibly().onExit().join();
    }

    @Override
    public void close() {
        kill();
        try (var files = Files.walk(directory)) {
            files.sorted(Comparator.reverseOrder()).forEach(file -> file.toFile().delete());
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }
}
