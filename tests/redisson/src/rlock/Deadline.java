package rlock;

import java.time.Duration;
import java.util.function.BooleanSupplier;

/** Waiting for a condition with a bound. */
final class Deadline {
    /** Longer than anything here takes on a busy machine, unless it never comes. */
    static final Duration LONG = Duration.ofSeconds(30);

    private final long end;

    Deadline(Duration after) {
        end = System.nanoTime() + after.toNanos();
    }

    boolean isOver() {
        return System.nanoTime() - end >= 0;
    }

    /** What never comes is no failed assertion: no machine stalls for that long, and {@link Calm} excuses nothing. */
    static void until(String what, BooleanSupplier condition) {
        if (!comes(condition, LONG)) {
            throw new IllegalStateException("never: " + what);
        }
    }

    /** Whether it comes within this time. */
    static boolean comes(BooleanSupplier condition, Duration within) {
        var deadline = new Deadline(within);
        while (!condition.getAsBoolean()) {
            if (deadline.isOver()) {
                return false;
            }
            nap();
        }
        return true;
    }

    /** Between two looks. */
    static void nap() {
        sleep(2);
    }

    static void sleep(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException interrupted) {
            throw new IllegalStateException(interrupted);
        }
    }
}
