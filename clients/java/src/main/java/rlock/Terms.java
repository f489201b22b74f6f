package rlock;

import java.time.Duration;

/** How long a lock is held, and by what. It does not change: each method gives other terms. Parts of a millisecond are rounded up. */
public final class Terms {
    static final Terms DEFAULT = new Terms(Duration.ofSeconds(30), true, null, null, 0, true);

    final Duration lease;
    final boolean isRenewed;
    final Duration maxHold;
    final Duration bound;
    final int replicas;
    final boolean tellsLoss;

    private Terms(Duration lease, boolean isRenewed, Duration maxHold, Duration bound, int replicas, boolean tellsLoss) {
        this.lease = lease;
        this.isRenewed = isRenewed;
        this.maxHold = maxHold;
        this.bound = bound;
        this.replicas = replicas;
        this.tellsLoss = tellsLoss;
    }

    /** A lease of 30 s that is renewed every third of it. */
    public static Terms standard() {
        return DEFAULT;
    }

    /** How long others wait after this process has died: 1 ms to 30 days, at most what the server allows. */
    public Terms lease(Duration lease) {
        return new Terms(lease, true, maxHold, bound, replicas, tellsLoss);
    }

    /** A lease that is not renewed: the lock is lost at its end. */
    public Terms fixedLease(Duration lease) {
        return new Terms(lease, false, maxHold, bound, replicas, tellsLoss);
    }

    /** For how long the lease is renewed at most, from the grant: then the lock is lost. */
    public Terms maxHold(Duration most) {
        return new Terms(lease, isRenewed, most, bound, replicas, tellsLoss);
    }

    /** Ends the hold this much after the end of its connection. One key only. */
    public Terms bound(Duration grace) {
        return new Terms(lease, isRenewed, maxHold, grace, replicas, tellsLoss);
    }

    /** Counts a grant and each renewal only once this many replicas know of it, 0 to 65,535. Not together with {@code bound}. */
    public Terms replicas(int count) {
        if (count < 0 || count > 0xffff) {
            throw new IllegalArgumentException("replicas is " + count + ", it must be between 0 and 65535");
        }
        return new Terms(lease, isRenewed, maxHold, bound, count, tellsLoss);
    }

    /** A release says nothing of a loss. */
    public Terms ignoringLoss() {
        return new Terms(lease, isRenewed, maxHold, bound, replicas, false);
    }
}
