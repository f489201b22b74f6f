package rlock;

import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Objects;
import java.util.function.Consumer;
import javax.net.ssl.SSLContext;

/** The settings of a {@link Client} or of a {@link Quorum}; {@code B} is the builder itself. */
abstract class Settings<B extends Settings<B>> {
    final List<String> urls;
    /** What the servers are together, as {@link Format} says it. */
    int together;
    String name = "";
    SSLContext tls;
    Duration responseTimeout;
    Duration retryTimeout;
    Duration replicationTimeout;
    Consumer<Occurrence> listener;
    Path uptime = Clock.UPTIME;

    Settings(List<String> urls, int together) {
        this.urls = urls;
        this.together = together;
    }

    @SuppressWarnings("unchecked")
    private B self() {
        return (B) this;
    }

    /** Begins the names of connections and owners, for people who inspect the server: 1 to 64 bytes without spaces. */
    public B name(String name) {
        Engine.checkText("name", Objects.requireNonNull(name, "name"));
        this.name = name;
        return self();
    }

    /** For {@code rediss://}. Default: the JVM's default context. */
    public B tls(SSLContext tls) {
        this.tls = tls;
        return self();
    }

    /** How long the server may take for one reply. Default 5 s. */
    public B responseTimeout(Duration timeout) {
        responseTimeout = timeout;
        return self();
    }

    /** How long calls that do not wait for a lock are retried while servers are unreachable. Default 10 s. */
    public B retryTimeout(Duration timeout) {
        retryTimeout = timeout;
        return self();
    }

    /** How long replicas may take to acknowledge a grant. Default 1 s. */
    public B replicationTimeout(Duration timeout) {
        replicationTimeout = timeout;
        return self();
    }

    /**
     * Takes each wait and each hold that has ended, and what happens to renewals and connections: see {@code docs/telemetry.md}.
     * The client's thread calls it, in the order of the occurrences, so it must be quick and must not block. What it throws is
     * logged.
     */
    public B listener(Consumer<Occurrence> listener) {
        this.listener = Objects.requireNonNull(listener, "listener");
        return self();
    }

    /** For tests: another file with the uptime. */
    B uptime(Path file) {
        uptime = file;
        return self();
    }
}
