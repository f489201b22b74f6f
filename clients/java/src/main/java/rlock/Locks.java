package rlock;

import static java.util.concurrent.TimeUnit.NANOSECONDS;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * Locks of a server that has librlock.so. Made by {@link JedisLocks#of} or {@link LettuceLocks#of}; used by any number of threads.
 *
 * <p>A waiter queues in the server, is granted the lock by its holder's release, and is sent nothing to poll with. A hold is
 * renewed in the background every third of its lease. A lease is no mutual exclusion: send {@link Held#fence()} along with each
 * write that the lock protects.
 */
public final class Locks implements AutoCloseable {
    static final Duration MARGIN = Duration.ofSeconds(5); // What a reply may take on top of the wait, and a release in all.
    private static final long SLICE = Duration.ofSeconds(10).toNanos(); // One blocked call: a dead connection is noticed.
    private static final String KEEP = "10000"; // The place in the queue outlives its call for so many milliseconds.

    /** How to ask next; CONFIRM after a grant whose lease began at a time unknown here: a renewal has a known beginning. */
    private enum How { TRY, WAIT, CONFIRM }

    private record Answer(Long number, LockException failure) {}

    private final Link link;
    private final ScheduledThreadPoolExecutor timer;
    private final Map<String, CompletableFuture<Void>> leaving = new ConcurrentHashMap<>(); // By owner.

    Locks(Link link) {
        this.link = link;
        timer = new ScheduledThreadPoolExecutor(1, task -> daemon(task, "rlock-timer"));
        timer.setRemoveOnCancelPolicy(true);
    }

    static Thread daemon(Runnable task, String name) {
        var thread = new Thread(task, name);
        thread.setDaemon(true);
        return thread;
    }

    /** Begins a request for one lock, or for several: all or none of them, under one fence. In a cluster they share a slot. */
    public Request on(String... keys) {
        return new Request(this, List.of(keys));
    }

    /** {@code on(key).lease(lease).waitAtMost(wait).lock()}. */
    public Held lock(String key, Duration lease, Duration wait) throws InterruptedException {
        return on(key).lease(lease).waitAtMost(wait).lock();
    }

    /** Closes the connections that were opened here, not the client; holds are not renewed any more. */
    @Override
    public void close() {
        timer.shutdownNow();
        link.close();
    }

    Link link() {
        return link;
    }

    ScheduledThreadPoolExecutor timer() {
        return timer;
    }

    Held lock(Request request) throws InterruptedException {
        CompletableFuture<Void> withdrawal = leaving.get(request.owner());
        if (withdrawal != null) { // It would release what this call is about to get.
            try {
                withdrawal.get();
            } catch (ExecutionException e) {
                throw new LockException("the withdrawal of the last request failed", e.getCause());
            }
        }
        return acquire(request);
    }

    /** Tries, then waits on a connection of its own, and asks again when that is lost. */
    private Held acquire(Request request) throws InterruptedException {
        long start = System.nanoTime();
        long answered = start;
        long pause = 10_000_000;
        long fence = 0;
        How how = How.TRY;
        while (true) {
            long sent = System.nanoTime();
            long limit = Math.min(SLICE, request.left(start));
            Answer answer = await(request, ask(request, how, limit), start);
            boolean over = request.left(start) == 0;
            Long number = answer.number();
            if (how == How.CONFIRM && !request.holds(number, fence)) {
                number = null;
            }
            if (number != null) {
                fence = how == How.CONFIRM ? fence : number;
                if (how != How.WAIT || System.nanoTime() - sent <= request.leaseNanos() / 3) {
                    return new Held(this, request, fence, sent);
                }
                how = How.CONFIRM;
            } else if (answer.failure() == null) {
                boolean withdrawn = how == How.WAIT && System.nanoTime() - sent < limit - 2_000_000;
                if (over || withdrawn) {
                    if (how == How.WAIT) { // Its place is kept.
                        leave(request, null);
                    }
                    throw new LockException.NotAcquired(request.keys() + " not acquired");
                }
                how = How.WAIT;
                answered = System.nanoTime();
                pause = 10_000_000;
            } else {
                if (!passes(answer.failure()) || over || System.nanoTime() - answered > request.leaseNanos()) {
                    leave(request, null);
                    throw answer.failure();
                }
                rest(request, Math.min(pause, request.left(start)));
                pause = Math.min(2 * pause, 1_000_000_000);
                how = How.TRY; // It also finds the server that has the key now.
            }
        }
    }

    private CompletableFuture<Long> ask(Request request, How how, long limit) {
        return switch (how) {
            case TRY -> link.ask(request.acquiring());
            case CONFIRM -> link.ask(request.renewing());
            case WAIT -> { // Rounded up: 0 would wait for ever.
                long milliseconds = Math.max(1, (limit + 999_999) / 1_000_000);
                var command = request.acquiring("WAIT", String.valueOf(milliseconds), "KEEP", KEEP);
                yield link.block(command, Duration.ofMillis(milliseconds).plus(MARGIN));
            }
        };
    }

    private Answer await(Request request, CompletableFuture<Long> pending, long start) throws InterruptedException {
        try {
            long left = request.isBounded() ? request.left(start) + MARGIN.toNanos() : Long.MAX_VALUE;
            return new Answer(pending.get(left, NANOSECONDS), null);
        } catch (ExecutionException e) {
            return new Answer(null, failure(e.getCause()));
        } catch (TimeoutException e) {
            leave(request, pending);
            throw new LockException.NotAcquired(request.keys() + " not acquired: the server did not answer within the wait");
        } catch (InterruptedException e) {
            leave(request, pending);
            throw e;
        }
    }

    private void rest(Request request, long nanoseconds) throws InterruptedException {
        try {
            NANOSECONDS.sleep(nanoseconds);
        } catch (InterruptedException e) {
            leave(request, null);
            throw e;
        }
    }

    /** Withdraws a request, of which pending is the call that may still be answered; returns after a second at most. */
    private void leave(Request request, CompletableFuture<Long> pending) {
        var gone = new CompletableFuture<Void>();
        leaving.put(request.owner(), gone);
        daemon(() -> {
            try {
                withdraw(request, pending);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            } finally {
                leaving.remove(request.owner(), gone);
                gone.complete(null);
            }
        }, "rlock-withdrawal").start();
        try {
            gone.get(1, TimeUnit.SECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        } catch (ExecutionException | TimeoutException e) {
            return; // It goes on in the background.
        }
    }

    /**
     * Cancels until the pending call has been answered, as the cancelling may have overtaken it; then releases.
     * Gives up after a lease: whatever was granted has ended by then.
     */
    private void withdraw(Request request, CompletableFuture<Long> pending) throws InterruptedException {
        for (long pause = 10; pending != null && !ended(pending, 0); pause = Math.min(2 * pause, 1000)) {
            var cancelled = link.ask(request.cancelling());
            if (ended(pending, pause)) {
                break;
            }
            ended(cancelled, 1000);
        }
        for (long start = System.nanoTime(); System.nanoTime() - start < request.leaseNanos(); Thread.sleep(100)) {
            LockException cancelled = outcome(link.ask(request.cancelling()));
            LockException released = outcome(link.ask(request.releasing()));
            if (!passes(cancelled) && !passes(released)) {
                return;
            }
        }
    }

    private static boolean ended(CompletableFuture<Long> call, long milliseconds) throws InterruptedException {
        try {
            call.get(milliseconds, TimeUnit.MILLISECONDS);
            return true;
        } catch (ExecutionException e) {
            return true;
        } catch (TimeoutException e) {
            return false;
        }
    }

    /** How a call failed, or null. */
    static LockException outcome(CompletableFuture<Long> call) throws InterruptedException {
        try {
            call.get(1, TimeUnit.SECONDS); // Else again, on another connection if there is one.
            return null;
        } catch (ExecutionException e) {
            return failure(e.getCause());
        } catch (TimeoutException e) {
            return new LockException("no answer from the server", e);
        }
    }

    static boolean passes(LockException failure) {
        return failure != null && (!(failure instanceof LockException.Refused refused) || refused.passes());
    }

    static LockException failure(Throwable cause) {
        return cause instanceof LockException known ? known : new LockException("no answer from the server: " + cause, cause);
    }
}
