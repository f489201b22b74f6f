package rlock;

import java.time.Duration;
import java.util.Objects;

/**
 * How long a lock is held, and on which conditions. Terms are immutable: each method returns new ones. Fractions of a
 * millisecond are rounded up.
 */
public final class Terms {
    static final Terms DEFAULT = new Terms(Duration.ofSeconds(30), true, null, null, 0, Duration.ZERO, true);

    final Duration lease;
    final boolean isRenewed;
    final Duration maxHold;
    final Duration bound;
    final int replicas;
    final Duration margin;
    final boolean reportsLoss;

    private Terms(Duration lease, boolean isRenewed, Duration maxHold, Duration bound, int replicas, Duration margin,
            boolean reportsLoss) {
        this.lease = lease;
        this.isRenewed = isRenewed;
        this.maxHold = maxHold;
        this.bound = bound;
        this.replicas = replicas;
        this.margin = margin;
        this.reportsLoss = reportsLoss;
    }

    /** As the engine takes them. */
    Format.Terms form() {
        return new Format.Terms(Engine.millis("lease", lease), isRenewed, Engine.millis("maxHold", maxHold),
                Engine.millis("bound", bound), replicas, Engine.millis("margin", margin));
    }

    /** A lease of 30 s, which the client renews every 10 s. */
    public static Terms standard() {
        return DEFAULT;
    }

    /** How long others wait after this process has died: 3 ms to 30 days, and at most the server's limit. */
    public Terms lease(Duration lease) {
        return new Terms(Objects.requireNonNull(lease, "lease"), true, maxHold, bound, replicas, margin, reportsLoss);
    }

    /** A lease that is not renewed: the lock is lost when it ends. */
    public Terms fixedLease(Duration lease) {
        return new Terms(Objects.requireNonNull(lease, "lease"), false, maxHold, bound, replicas, margin, reportsLoss);
    }

    /** The longest time, counted from the grant, for which the lease is renewed. Then the lock is lost. */
    public Terms maxHold(Duration most) {
        return new Terms(lease, isRenewed, Objects.requireNonNull(most, "most"), bound, replicas, margin, reportsLoss);
    }

    /** The hold ends this time after its connection. One key only. */
    public Terms bound(Duration grace) {
        return new Terms(lease, isRenewed, maxHold, Objects.requireNonNull(grace, "grace"), replicas, margin, reportsLoss);
    }

    /** How many replicas must acknowledge a grant and each renewal, 0 to 65,535. Not together with {@code bound}. */
    public Terms replicas(int count) {
        if (count < 0 || count > 0xffff) {
            throw new IllegalArgumentException("replicas is " + count + ", it must be between 0 and 65535");
        }
        return new Terms(lease, isRenewed, maxHold, bound, count, margin, reportsLoss);
    }

    /**
     * How long before the lease ends at the server the hold is lost here: time for code that looks at its hold now and then.
     * At most a third of the lease, of {@code bound} and of {@code maxHold}. Default zero.
     */
    public Terms margin(Duration margin) {
        return new Terms(lease, isRenewed, maxHold, bound, replicas, Objects.requireNonNull(margin, "margin"), reportsLoss);
    }

    /** A release does not report a loss. */
    public Terms ignoringLoss() {
        return new Terms(lease, isRenewed, maxHold, bound, replicas, margin, false);
    }
}
