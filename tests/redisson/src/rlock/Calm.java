package rlock;

import java.util.concurrent.atomic.AtomicLong;

/** Tests that measure time, on machines that stall now and then. */
final class Calm {
    /** Within this time a waiter of either kind is woken, where nothing but a message has to be sent for that. */
    static final long PROMPT = 100;

    private static final int ATTEMPTS = 12;
    /** How much later than it asked for a thread may go on, where {@link #PROMPT} is asked for. Waking takes several. */
    private static final long LATE = 15;
    private static final long NAP = 5;

    private Calm() {}

    interface Test {
        void run() throws Exception;
    }

    /** Runs a test that asks for what is {@link #PROMPT}. */
    static void run(Test test) throws Exception {
        run(LATE, test);
    }

    /**
     * Runs a test. An assertion that fails while a thread was woken too late by this many milliseconds says nothing, and
     * the test is run again. What fails without that has failed.
     */
    static void run(long late, Test test) throws Exception {
        for (int attempt = 1; ; attempt++) {
            var longest = new AtomicLong();
            var watch = new Thread(() -> note(longest));
            watch.start();
            try {
                test.run();
                return;
            } catch (AssertionError failure) {
                if (longest.get() <= late || attempt == ATTEMPTS) {
                    throw failure;
                }
                System.err.println("The machine stalled for " + longest + " ms, once more: " + failure.getMessage());
            } finally {
                watch.interrupt();
                watch.join();
            }
        }
    }

    /** By how much this thread was woken too late at most, until it is interrupted. */
    private static void note(AtomicLong longest) {
        try {
            while (true) {
                long asleep = System.nanoTime();
                Thread.sleep(NAP);
                long late = (System.nanoTime() - asleep) / 1_000_000 - NAP;
                longest.accumulateAndGet(late, Math::max);
            }
        } catch (InterruptedException done) {
            Thread.currentThread().interrupt();
        }
    }
}
