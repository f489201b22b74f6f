package rlock;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/** A server of {@code rlock-testserver}, which {@code RLOCK_TESTSERVER} names, and which ends with its standard input. */
record Server(int port, Process program) implements AutoCloseable {
    private static final String PROGRAM = System.getenv()
            .getOrDefault("RLOCK_TESTSERVER", Path.of("../../../target/debug/rlock-testserver").toAbsolutePath().toString());
    private static final Pattern PORT = Pattern.compile("\"port\":(\\d+)");

    /** A server with the module, and these lines of configuration. */
    static Server start(String... lines) {
        return run(Stream.concat(Stream.of("one"), Stream.of(lines).flatMap(line -> Stream.of("--set", line)))).get(0);
    }

    /** The masters of a cluster, which end together. */
    static List<Server> cluster(int nodes) {
        return run(Stream.of("cluster", "--nodes", "" + nodes));
    }

    /** A replica of this server, that has its data. */
    Server replica() {
        var replica = start("replicaof 127.0.0.1 " + port);
        try (var client = replica.connect()) {
            Deadline.until("a replica", () -> client.call("INFO", "replication").toString().contains("link_status:up"));
        }
        return replica;
    }

    /** A Sentinel that watches this server under the name {@code locks}. */
    Server sentinel() {
        return run(Stream.of("sentinel", "--of", "" + port)).get(0);
    }

    private static List<Server> run(Stream<String> arguments) {
        try {
            var command = new ArrayList<>(List.of(PROGRAM));
            command.addAll(arguments.toList());
            var program = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
            var addresses = PORT.matcher(program.inputReader().readLine());
            return addresses.results().map(port -> new Server(Integer.parseInt(port.group(1)), program)).toList();
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
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
        try {
            program.getOutputStream().close();
            program.waitFor();
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
