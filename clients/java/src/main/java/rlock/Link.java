package rlock;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/** The way to a server through one library. A future ends with null for nil, with Refused for an error of the server. */
interface Link extends AutoCloseable {
    /** Asks on a connection that never waits. */
    CompletableFuture<Long> ask(Command command);

    /** Asks on a connection of its own, which the server may block. Without an answer within the limit it is an error. */
    CompletableFuture<Long> block(Command command, Duration limit);

    @Override
    void close();

    /** A command; its keys stand between the other arguments. */
    record Command(String name, List<String> before, List<String> keys, List<String> after) {}
}
