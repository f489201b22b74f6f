package rlock;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import rlock.Engine.Action;

/**
 * The right to lead at a key. One owner at a time has it, in the order of asking, and publishes a value with it, such as its
 * address. It is the lock at its key: a holder that did not campaign keeps candidates waiting, but is no leader.
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

    /** What a leader has published. */
    public static class Proclaimed {
        private final long fence;
        private final byte[] value;

        private Proclaimed(Action it) {
            fence = it.fence;
            value = it.bytes;
        }

        /** Larger than the fence of every leader before. */
        public long fence() {
            return fence;
        }

        /** Any bytes, 0 to 1024 of them. */
        public byte[] value() {
            return value.clone();
        }

        /** The value as UTF-8. */
        public String text() {
            return new String(value, StandardCharsets.UTF_8);
        }
    }

    /** Who leads, as the server says. */
    public static final class Leader extends Proclaimed {
        private final String owner;
        private final Duration timeLeft;

        private Leader(Action it) {
            super(it);
            owner = it.text;
            timeLeft = Duration.ofMillis(it.left);
        }

        public String owner() {
            return owner;
        }

        /** When its leadership ends unless it is renewed. */
        public Duration timeLeft() {
            return timeLeft;
        }
    }

    /** Who leads from now on, as an observer sees it. */
    public static final class Change {
        private final Proclaimed leader;
        private final boolean isMissed;

        private Change(Proclaimed leader, boolean isMissed) {
            this.leader = leader;
            this.isMissed = isMissed;
        }

        static Change of(Action it) {
            return new Change(it.leads ? new Proclaimed(it) : null, it.isMissed);
        }

        /** The same, behind others that are dropped. */
        Change behindMissed() {
            return new Change(leader, true);
        }

        /** Empty if nobody leads. */
        public Optional<Proclaimed> leader() {
            return Optional.ofNullable(leader);
        }

        /**
         * Whether others may have led since the last change: there was no connection, or too many changes were not taken.
         */
        public boolean isMissed() {
            return isMissed;
        }
    }

    /** The same election, whose campaigns have other terms. */
    public Election with(Terms terms) {
        return new Election(client, name, lock.with(terms));
    }

    /**
     * Waits until this process leads, and publishes {@code value} from then on: any bytes, 0 to 1024 of them. It waits as {@link
     * RLock#acquire} does: an interrupted thread leaves nothing on the server.
     *
     * @throws IllegalArgumentException if the value is too long
     */
    public Leadership campaign(byte[] value) throws InterruptedException {
        return client.await(campaignAsync(value));
    }

    /** The same with a text, as UTF-8. */
    public Leadership campaign(String value) throws InterruptedException {
        return campaign(bytes(value));
    }

    /** Waits for this long; with zero it leads at once or not at all. */
    public Optional<Leadership> tryCampaign(byte[] value, Duration wait) throws InterruptedException {
        return Optional.ofNullable(client.await(campaignAsync(value, wait, null)));
    }

    /** The same with a text, as UTF-8. */
    public Optional<Leadership> tryCampaign(String value, Duration wait) throws InterruptedException {
        return tryCampaign(bytes(value), wait);
    }

    /** To cancel it ends the wait, and withdraws the request. What follows without {@code Async} must not block. */
    public CompletableFuture<Leadership> campaignAsync(byte[] value) {
        return campaignAsync(value, null, null);
    }

    /** The same with a text, as UTF-8. */
    public CompletableFuture<Leadership> campaignAsync(String value) {
        return campaignAsync(bytes(value));
    }

    /** {@code null} if {@code wait} was not enough; without limit if that is {@code null}. So may be {@code activity}. */
    public CompletableFuture<Leadership> campaignAsync(byte[] value, Duration wait, Client.Activity activity) {
        return lock.campaign(Objects.requireNonNull(value, "value"), wait, activity);
    }

    /** Who leads at the moment of asking; empty if nobody does. It may be different by now. */
    public Optional<Leader> leader() {
        var told = client.join(client.call(Client.LEADER, null, event -> event.text(name)));
        return told.leads ? Optional.of(new Leader(told)) : Optional.empty();
    }

    /**
     * Who leads now, and then each change of that, as the server tells it, until it is closed. It begins at once. All that
     * observe by one client share its connection.
     */
    public Changes observe() {
        return new Changes(client, name);
    }

    static byte[] bytes(String value) {
        return value.getBytes(StandardCharsets.UTF_8);
    }
}
