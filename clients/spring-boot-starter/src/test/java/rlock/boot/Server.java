package rlock.boot;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** A server with the module, which can be started again at the same port. */
final class Server implements AutoCloseable {
    final int port;
    private final Path directory = Files.createTempDirectory("rlock");
    private final boolean hasModule;
    private Process process;

    Server() throws Exception {
        this(true);
    }

    Server(boolean hasModule) throws Exception {
        this.hasModule = hasModule;
        try (var free = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            port = free.getLocalPort();
        }
        start();
    }

    String url() {
        return "redis://127.0.0.1:" + port;
    }

    void start() throws Exception {
        var command = new ArrayList<>(List.of(environment("RLOCK_SERVER", "redis-server"), "--port", "" + port, "--save", "",
                "--bind", "127.0.0.1", "--dir", directory.toString(), "--logfile", "log"));
        if (hasModule) {
            command.addAll(List.of("--loadmodule", environment("RLOCK_MODULE", "../../target/release/librlock.so")));
        }
        process = new ProcessBuilder(command).inheritIO().start();
        Spring.eventually("the server answers", () -> {
            try {
                if (!process.isAlive()) {
                    throw new AssertionError("the server has ended: " + Files.readString(directory.resolve("log")));
                }
                return ask("PING") != null;
            } catch (IOException notYet) {
                return false;
            }
        });
    }

    void kill() throws Exception {
        process.destroyForcibly().waitFor();
    }

    static String environment(String name, String otherwise) {
        return System.getenv().getOrDefault(name, otherwise);
    }

    /** The reply to a command in plain RESP2. */
    String ask(String... words) throws IOException {
        try (var socket = new Socket(InetAddress.getLoopbackAddress(), port)) {
            var command = new StringBuilder("*" + words.length + "\r\n");
            for (var word : words) {
                command.append("$" + word.length() + "\r\n" + word + "\r\n");
            }
            socket.getOutputStream().write(command.toString().getBytes(StandardCharsets.UTF_8));
            socket.shutdownOutput();
            return new String(socket.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        }
    }

    boolean isFree(String key) throws IOException {
        return ask("EXISTS", key).equals(":0\r\n");
    }

    @Override
    public void close() throws Exception {
        process.destroy();
        process.waitFor(10, TimeUnit.SECONDS);
        try (var files = Files.list(directory)) {
            for (var file : files.toList()) {
                Files.delete(file);
            }
        }
        Files.delete(directory);
    }
}
