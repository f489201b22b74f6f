package rlock;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;

/** Servers of {@code rlock-testserver}, which end with their test. */
final class Servers implements AutoCloseable {
    private final Process process;
    final JsonNode about;
    final String url;

    Servers(String... arguments) {
        var program = System.getenv().getOrDefault("RLOCK_TESTSERVER", "../../target/debug/rlock-testserver");
        var command = new ArrayList<>(List.of(program));
        command.addAll(arguments.length == 0 ? List.of("one") : Arrays.asList(arguments));
        try {
            process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
            about = new ObjectMapper().readTree(process.inputReader().readLine());
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        url = about.get("url").asText();
    }

    int port(int index) {
        return about.get("servers").get(index).get("port").asInt();
    }

    int port() {
        return port(0);
    }

    void signal(String name) {
        try {
            new ProcessBuilder("kill", "-" + name, about.get("servers").get(0).get("pid").asText()).start().waitFor();
        } catch (IOException | InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    /** The reply to a command in plain RESP2, on a separate connection. */
    static String ask(int port, String... words) {
        try (var socket = new Socket(InetAddress.getLoopbackAddress(), port)) {
            var command = new StringBuilder("*" + words.length + "\r\n");
            for (var word : words) {
                command.append("$" + word.getBytes(StandardCharsets.UTF_8).length + "\r\n" + word + "\r\n");
            }
            socket.getOutputStream().write(command.toString().getBytes(StandardCharsets.UTF_8));
            socket.shutdownOutput();
            return new String(socket.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    boolean isFree(String key) {
        return ask(port(), "EXISTS", key).equals(":0\r\n");
    }

    boolean isQueued(String key, int count) {
        return ask(port(), "RLOCK.INFO", key).contains("queued\r\n:" + count + "\r\n");
    }

    /** The connections of clients of this library. */
    long connections() {
        var lines = ask(port(), "CLIENT", "LIST").lines();
        return lines.filter(it -> it.contains("lib-name=rlock-java") || it.matches(".* sub=[1-9].*")).count();
    }

    static void eventually(String what, BooleanSupplier condition) {
        for (var end = System.nanoTime() + TimeUnit.SECONDS.toNanos(15); !condition.getAsBoolean();) {
            if (System.nanoTime() > end) {
                throw new AssertionError("not within 15 s: " + what);
            }
            pause(5);
        }
    }

    static void pause(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    @Override
    public void close() {
        signal("CONT");
        process.destroy();
        try {
            process.waitFor();
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    /** Passes bytes on while it is enabled. */
    static final class Network implements AutoCloseable {
        volatile int target;
        volatile int delay;
        volatile boolean isMute;
        final Set<Socket> open = ConcurrentHashMap.newKeySet();
        private final ServerSocket listener;

        Network(int port) {
            target = port;
            try {
                listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
            start(() -> {
                while (true) {
                    var near = listener.accept();
                    start(() -> pass(near));
                }
            });
        }

        String url() {
            return "redis://127.0.0.1:" + listener.getLocalPort();
        }

        private interface Work {
            void run() throws IOException;
        }

        private static void start(Work work) {
            var thread = new Thread(() -> {
                try {
                    work.run();
                } catch (IOException ended) {
                    // A connection has ended.
                }
            });
            thread.setDaemon(true);
            thread.start();
        }

        private void pass(Socket near) throws IOException {
            try (near; var far = new Socket(InetAddress.getLoopbackAddress(), target)) {
                open.add(near);
                start(() -> carry(near, far, false));
                carry(far, near, true);
            } finally {
                open.remove(near);
            }
        }

        private void carry(Socket from, Socket to, boolean isReply) throws IOException {
            var buffer = new byte[64 << 10];
            try (to) {
                for (int count; (count = from.getInputStream().read(buffer)) >= 0;) {
                    pause(delay);
                    if (!isReply || !isMute) {
                        to.getOutputStream().write(buffer, 0, count);
                    }
                }
            }
        }

        void cut() {
            for (var each : open) {
                try {
                    each.close();
                } catch (IOException gone) {
                    // It is closed.
                }
            }
        }

        @Override
        public void close() throws IOException {
            listener.close();
            cut();
        }
    }
}
