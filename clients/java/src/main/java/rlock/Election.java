package rlock;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;

/**
 * The right to lead at a key. One owner at a time has it, first come, first served, and publishes a value, such as its address.
 * It is the lock at the key: a holder that did not campaign keeps candidates waiting, but is not a leader.
 */
public final class Election {
    private final Client client;
    private final String name;
    private final RLock lock;

    Election(Client client, String name, RLock lock) {
        this.client = client;
        this.name = name;
        this.lock = lock;
    }

    /** A value that a leader has published. */
    public static class Proclaimed {
        private final long fence;
        private final byte[] value;

        private Proclaimed(Format.Leader it) {
            fence = it.fence;
            value = it.value;
        }

        /** Larger than the fence of every earlier leader. */
        public long fence() {
            return fence;
        }

        /** The value: any bytes, 0 to 1024 of them. */
        public byte[] value() {
            return value.clone();
        }

        /** The value as UTF-8. */
        public String text() {
            return new String(value, StandardCharsets.UTF_8);
        }
    }

    /** The current leader, according to the server. */
    public static final class Leader extends Proclaimed {
        private final String owner;
        private final Duration timeLeft;

        private Leader(Format.Leader it) {
            super(it);
            owner = it.owner;
            timeLeft = Duration.ofMillis(it.timeLeft);
        }

        public String owner() {
            return owner;
        }

        /** The time until its leadership ends unless it is renewed. */
        public Duration timeLeft() {
            return timeLeft;
        }
    }

    /** A new leader, as an observer receives it. */
    public static final class Change {
        private final Proclaimed leader;
        private final boolean isMissed;

        private Change(Proclaimed leader, boolean isMissed) {
            this.leader = leader;
            this.isMissed = isMissed;
        }

        static Change of(Format.Action it) {
            return new Change(it.leader == null ? null : new Proclaimed(it.leader), it.isMissed);
        }

        /** The same change, after others that were dropped. */
        Change behindMissed() {
            return new Change(leader, true);
        }

        /** Empty if nobody leads. */
        public Optional<Proclaimed> leader() {
            return Optional.ofNullable(leader);
        }

        /**
         * Whether the observer may have missed leaders since the last change. This happens if there was no connection, or if
         * it did not take its changes in time.
         */
        public boolean isMissed() {
            return isMissed;
        }
    }

    /** The same election, whose campaigns have other terms. */
    public Election with(Terms terms) {
        return new Election(client, name, lock.with(terms));
    }

    /** The same election, whose leaderships call {@code action} when they are at risk: see {@link RLock#onRisk}. */
    public Election onRisk(Consumer<Duration> action) {
        return new Election(client, name, lock.onRisk(action));
    }

    /**
     * Waits until this process leads, and publishes {@code value} from then on: any bytes, 0 to 1024 of them. As with {@link
     * RLock#acquire}, an interrupted thread leaves nothing on the server.
     *
     * @throws IllegalArgumentException if the value is too long
     */
    public Leadership campaign(byte[] value) throws InterruptedException {
        return client.await(() -> campaignAsync(value));
    }

    /** The same with a text, as UTF-8. */
    public Leadership campaign(String value) throws InterruptedException {
        return campaign(bytes(value));
    }

    /** Waits at most this time; zero means one try. Empty if this process does not lead. */
    public Optional<Leadership> tryCampaign(byte[] value, Duration wait) throws InterruptedException {
        Objects.requireNonNull(wait, "wait");
        return Optional.ofNullable(client.await(() -> campaignAsync(value, wait, null)));
    }

    /** The same with a text, as UTF-8. */
    public Optional<Leadership> tryCampaign(String value, Duration wait) throws InterruptedException {
        return tryCampaign(bytes(value), wait);
    }

    /** Waits until this process leads. The request is withdrawn as by {@link RLock#acquireAsync}. Stages without {@code Async} must not block. */
    public CompletableFuture<Leadership> campaignAsync(byte[] value) {
        return campaignAsync(value, null, null);
    }

    /** The same with a text, as UTF-8. */
    public CompletableFuture<Leadership> campaignAsync(String value) {
        return campaignAsync(bytes(value));
    }

    /** The same; the result is {@code null} after {@code wait}. Both {@code wait} and {@code activity} may be {@code null}. */
    public CompletableFuture<Leadership> campaignAsync(byte[] value, Duration wait, Client.Activity activity) {
        return lock.campaign(Objects.requireNonNull(value, "value"), wait, activity);
    }

    /** The leader at the moment of the request; empty if nobody leads. It may have changed since. */
    public Optional<Leader> leader() {
        var answer = client.join(() -> client.call(null, (to, call) -> Format.leader(to, call, bytes(name))));
        return Optional.ofNullable(answer.leader).map(Leader::new);
    }

    /**
     * The current leader, then each change, until it is closed. It begins at once. All observers of one client share its
     * connection.
     */
    public Changes observe() {
        return new Changes(client, name);
    }

    static byte[] bytes(String value) {
        Engine.checkText("value", value);
        return value.getBytes(StandardCharsets.UTF_8);
    }
}
