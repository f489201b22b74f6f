package rlock;

import java.time.Duration;

/**
 * How long a lock is held, and on which conditions. Terms are immutable: each method returns new ones. Fractions of a
 * millisecond are rounded up.
 */
public final class Terms {
    static final Terms DEFAULT = new Terms(Duration.ofSeconds(30), true, null, null, 0, true);

    final Duration lease;
    final boolean isRenewed;
    final Duration maxHold;
    final Duration bound;
    final int replicas;
    final boolean reportsLoss;

    private Terms(Duration lease, boolean isRenewed, Duration maxHold, Duration bound, int replicas, boolean reportsLoss) {
        this.lease = lease;
        this.isRenewed = isRenewed;
        this.maxHold = maxHold;
        this.bound = bound;
        this.replicas = replicas;
        this.reportsLoss = reportsLoss;
    }

    /** As the engine takes them. */
    Format.Terms form() {
        return new Format.Terms(Engine.millis("lease", lease), isRenewed, Engine.millis("maxHold", maxHold),
                Engine.millis("bound", bound), replicas);
    }

    /** A lease of 30 s, which the client renews every 10 s. */
    public static Terms standard() {
        return DEFAULT;
    }

    /** How long others wait after this process has died: 3 ms to 30 days, and at most the server's limit. */
    public Terms lease(Duration lease) {
        return new Terms(lease, true, maxHold, bound, replicas, reportsLoss);
    }

    /** A lease that is not renewed: the lock is lost when it ends. */
    public Terms fixedLease(Duration lease) {
        return new Terms(lease, false, maxHold, bound, replicas, reportsLoss);
    }

    /** The longest time, counted from the grant, for which the lease is renewed. Then the lock is lost. */
    public Terms maxHold(Duration most) {
        return new Terms(lease, isRenewed, most, bound, replicas, reportsLoss);
    }

    /** The hold ends this time after its connection. One key only. */
    public Terms bound(Duration grace) {
        return new Terms(lease, isRenewed, maxHold, grace, replicas, reportsLoss);
    }

    /** How many replicas must acknowledge a grant and each renewal, 0 to 65,535. Not together with {@code bound}. */
    public Terms replicas(int count) {
        if (count < 0 || count > 0xffff) {
            throw new IllegalArgumentException("replicas is " + count + ", it must be between 0 and 65535");
        }
        return new Terms(lease, isRenewed, maxHold, bound, count, reportsLoss);
    }

    /** A release does not report a loss. */
    public Terms ignoringLoss() {
        return new Terms(lease, isRenewed, maxHold, bound, replicas, false);
    }
}
