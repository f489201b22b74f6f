package contestant;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;

/** The workloads, the same for each peer; each caller has a thread of its own. */
final class Modes {
    /** A loop ends early after this many: more would say nothing more. */
    private static final long MOST_ACQUISITIONS = 200_000;
    /** How long callers warm up before a loop or a crowd: in that time Java compiles what they run. */
    private static final Duration WARM_UP = Duration.ofMillis(1_500);
    /** This many warm up for that long; any further ones acquire once, so that their connections are open. */
    private static final int WARM_UP_CALLERS = 16;
    private static final Duration MILLISECOND = Duration.ofMillis(1);
    /** How long a caller rests after an error: one that comes at once must not become a busy loop. */
    private static final Duration AFTER_ERROR = Duration.ofMillis(10);

    private final Workload workload;
    private final Peer.Caller[] callers;
    private final List<List<long[]>> rows = new ArrayList<>();
    private final AtomicLong taken = new AtomicLong();
    private final AtomicLong errors = new AtomicLong();

    Modes(Workload workload, Peer.Callers peer) throws Exception {
        this.workload = workload;
        callers = new Peer.Caller[workload.allCallers()];
        for (int i = 0; i < callers.length; i++) {
            callers[i] = peer.caller();
            rows.add(new ArrayList<>());
        }
        if (!workload.mode().equals("start")) {
            warmUp();
        }
    }

    void loop() throws Exception {
        Lines.event("ready");
        Lines.await();
        long end = System.nanoTime() + (long) (workload.seconds() * 1e9);
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < callers.length; i++) {
            int caller = i;
            threads.add(start(() -> turns(caller, end)));
        }
        finish(threads);
    }

    /** All others ask for what caller 0 holds, one after the other. */
    void crowd() throws Exception {
        long asked = Lines.now();
        callers[0].acquire(workload.key());
        long granted = Lines.now();
        // One up to a crowd of 1,000; a larger one asks within a second.
        int perMillisecond = Math.max(1, callers.length / 1_000);
        List<Thread> threads = new ArrayList<>();
        for (int i = 1; i < callers.length; i++) {
            int caller = i;
            CountDownLatch asking = new CountDownLatch(1);
            threads.add(start(() -> {
                asking.countDown();
                once(caller, workload.key());
            }));
            asking.await();
            if (i % perMillisecond == 0) {
                rest(MILLISECOND);
            }
        }
        rest(workload.settle());
        Lines.event("settled");
        Lines.await();
        long releasing = Lines.now();
        callers[0].release();
        rows.get(0).add(new long[] {0, asked, granted, releasing, Lines.now()});
        finish(threads);
    }

    void hold() throws Exception {
        callers[0].acquire(workload.key());
        Lines.eventAt("held");
        Lines.await(); // Until it is killed. It must not outlive the driver either.
    }

    void awaitGrant() throws Exception {
        Lines.eventAt("asked");
        callers[0].acquire(workload.key());
        Lines.eventAt("granted");
        callers[0].release();
    }

    /** Lets each caller acquire and release on a key of its own. */
    private void warmUp() throws InterruptedException {
        boolean briefly = workload.mode().equals("hold") || workload.mode().equals("wait");
        long end = System.nanoTime() + (briefly ? 0 : WARM_UP.toNanos());
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < callers.length; i++) {
            int caller = i;
            threads.add(start(() -> warmUp(caller, caller < WARM_UP_CALLERS ? end : 0)));
        }
        join(threads);
        if (errors.get() > 0) {
            throw new IllegalArgumentException("a caller could not acquire and release a lock of its own");
        }
    }

    private void warmUp(int caller, long end) {
        String key = workload.key() + ":warm:" + caller;
        try {
            do {
                callers[caller].acquire(key);
                callers[caller].release();
            } while (System.nanoTime() < end);
        } catch (Exception error) {
            failed(error);
        }
    }

    private void turns(int caller, long end) {
        String key = workload.keyOf(caller);
        List<long[]> own = rows.get(caller);
        while (System.nanoTime() < end
                && (taken.get() < MOST_ACQUISITIONS || workload.mode().equals("start"))
                && (workload.rounds() == 0 || own.size() < workload.rounds())) {
            once(caller, key);
            taken.incrementAndGet();
        }
    }

    /** Acquires, holds and releases; keeps the times if all of it succeeded. */
    private void once(int caller, String key) {
        try {
            long asked = Lines.now();
            callers[caller].acquire(key);
            long granted = Lines.now();
            rest(workload.hold());
            long releasing = Lines.now();
            callers[caller].release();
            rows.get(caller).add(new long[] {caller, asked, granted, releasing, Lines.now()});
        } catch (Exception error) {
            failed(error);
            rest(AFTER_ERROR);
        }
    }

    private void failed(Exception error) {
        if (errors.getAndIncrement() == 0) {
            System.err.println("contestant: the first error: " + error);
        }
    }

    private void finish(List<Thread> threads) throws InterruptedException {
        join(threads);
        Lines.finish(rows.stream().flatMap(List::stream).toList(), errors.get());
    }

    private static Thread start(Runnable what) {
        Thread thread = new Thread(what);
        thread.start();
        return thread;
    }

    private static void join(List<Thread> threads) throws InterruptedException {
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private static void rest(Duration time) {
        long end = System.nanoTime() + time.toNanos();
        for (long left = time.toNanos(); left > 0; left = end - System.nanoTime()) {
            LockSupport.parkNanos(left);
        }
    }
}
