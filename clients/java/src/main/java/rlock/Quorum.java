package rlock;

import java.time.Duration;
import java.util.List;

/**
 * Locks that a majority of independent servers holds, so that they survive the failure of a minority: Redlock, with a queue and
 * a fence. All clients must name the same 3, 5, 7 or 9 servers. Each is a master, and none is a replica of another.
 *
 * <p>A member must not forget a grant and then grant the lock again. So it needs {@code rlock.startup-grace-ms} of at least the
 * longest lease, or {@code appendonly yes} with {@code appendfsync always}. A quorum is not consensus: send {@link Hold#fence}
 * with each write.
 *
 * <p>Any number of threads may use it: keep one for the process.
 */
public final class Quorum implements AutoCloseable {
    private final Client members;

    private Quorum(Builder builder) {
        members = new Client(builder);
    }

    /** A quorum with default settings. See {@link #builder}. */
    public static Quorum of(String... urls) {
        return builder(urls).build();
    }

    /**
     * Builds a quorum, which connects at its first call. Each URL names one server, and begins with {@code redis://} or {@code
     * rediss://}.
     */
    public static Builder builder(String... urls) {
        return new Builder(List.of(urls));
    }

    /** The settings of a quorum. They are those of its connection to each member, but the listener hears of a lock once. */
    public static final class Builder extends Settings<Builder> {
        private Builder(List<String> urls) {
            super(urls, Format.TOGETHER_QUORUM);
        }

        /**
         * Allows leases above the startup grace of a member. Then a member that crashes may grant a lock again that is still
         * held, and two can hold it at the same time. Use this only for servers that never forget for another reason.
         */
        public Builder anyGrace() {
            together = Format.TOGETHER_ANY_GRACE;
            return this;
        }

        /**
         * Builds it.
         *
         * @throws IllegalArgumentException if the number of URLs, a URL or an option is invalid; it names the member, from {@code
         *     members[0]} on
         * @throws IllegalStateException if {@code rlock.engine} asks for the native engine, which cannot be loaded
         */
        public Quorum build() {
            return new Quorum(this);
        }
    }

    /**
     * The lock of this name, with all methods but those that need a single server: {@link RLock#isLocked}, {@link
     * RLock#forceUnlock}, and {@link Hold#upgrade} and {@link Hold#downgrade} of its holds throw an {@link
     * IllegalArgumentException}.
     *
     * <p>A lock call throws an {@link RlockException} {@code Member}, which names the server, if the lease is above a member's
     * startup grace, or if a server cannot take part. A wait without limit continues while too few members can be reached; a wait
     * with a limit and a try then throw {@code Unavailable}.
     */
    public RLock getLock(String name) {
        return members.getLock(name);
    }

    /**
     * Connects now. Without it, the first call connects. Members that are down join later, if there is a majority now.
     *
     * @throws RlockException {@code Member} if a server cannot take part: it is the same as another one, a replica, or without
     *     the module; {@code Connect} if fewer than a majority can be reached, or one refuses the connection for a reason that
     *     does not pass
     */
    public void connect() {
        members.connect();
    }

    /** A new activity: see {@link Client#activity}. */
    public Client.Activity activity() {
        return members.activity();
    }

    /** Ends all waits with {@code Closed}, releases all holds, and closes the connections, within 5 s. */
    @Override
    public void close() {
        members.close();
    }

    /** The same, within {@code timeout}. */
    public void close(Duration timeout) {
        members.close(timeout);
    }
}
