package rlock;

import java.util.concurrent.Callable;

/** Waits for a condition, for ten seconds at most. */
final class Eventually {
    private Eventually() {}

    static void so(String what, Callable<Boolean> condition) {
        long start = System.nanoTime();
        try {
            while (!condition.call()) {
                if (System.nanoTime() - start > 10_000_000_000L) {
                    throw new AssertionError("not within 10 s: " + what);
                }
                Thread.sleep(3);
            }
        } catch (Exception e) {
            throw new AssertionError(what, e);
        }
    }
}
