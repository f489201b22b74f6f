package rlock;

import static java.util.concurrent.TimeUnit.NANOSECONDS;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.RejectedExecutionException;

/** A lock that is held, and renewed in the background until {@link #close()}. */
public final class Held implements AutoCloseable {
    private enum State { HELD, LOST, RELEASED }

    private final Locks locks;
    private final Request request;
    private final long fence;
    private final long third;
    private long until; // The server cannot grant the lock to others before.
    private State state = State.HELD;
    private Future<?> renewal;
    private Future<?> end;

    Held(Locks locks, Request request, long fence, long sent) {
        this.locks = locks;
        this.request = request;
        this.fence = fence;
        third = request.leaseNanos() / 3;
        prolong(sent);
    }

    /** The fencing token: greater than that of every earlier holder. Send it along with each write. */
    public long fence() {
        return fence;
    }

    /** The keys that are held. */
    public List<String> keys() {
        return request.keys();
    }

    /** The name under which the server knows the holder. */
    public String owner() {
        return request.owner();
    }

    /**
     * Whether the lock was lost: true before the server can grant it to others if the lease has run out, and within a third of
     * the lease if somebody ended it. Asks no server. After the release it stays as it was.
     */
    public synchronized boolean isLost() {
        if (state == State.HELD && System.nanoTime() - until >= 0) {
            lose();
        }
        return state == State.LOST;
    }

    /**
     * Does nothing while the lock is held.
     *
     * @throws LockException.Lost if it is lost
     * @throws IllegalStateException if it was released
     */
    public synchronized void check() {
        if (isLost()) {
            throw new LockException.Lost(request.keys() + " is lost");
        }
        if (state == State.RELEASED) {
            throw new IllegalStateException(request.keys() + " is released");
        }
    }

    /**
     * Gives the lock back; the next waiter then holds it. A second one, and one after the loss, does no harm.
     * It is repeated until the server has answered, for 5 s at most, also when the thread is interrupted.
     *
     * @throws LockException if the server did not answer or refused; the lease then ends by itself
     */
    @Override
    public void close() {
        synchronized (this) {
            finish(State.RELEASED);
        }
        long start = System.nanoTime();
        boolean interrupted = Thread.interrupted();
        LockException failure = null;
        do {
            try {
                if (failure != null) {
                    Thread.sleep(100);
                }
                failure = Locks.outcome(locks.link().ask(request.releasing()));
            } catch (InterruptedException e) {
                interrupted = true;
            }
        } while (Locks.passes(failure) && System.nanoTime() - start < Locks.MARGIN.toNanos());
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
        if (failure != null) {
            throw failure;
        }
    }

    private void finish(State next) {
        if (state == State.HELD) {
            state = next;
            cancel();
        }
    }

    private void lose() {
        finish(State.LOST);
        CompletableFuture.runAsync(request::lost);
    }

    private void cancel() {
        if (renewal != null) {
            renewal.cancel(false);
            end.cancel(false);
        }
    }

    private synchronized void prolong(long sent) {
        cancel();
        long now = System.nanoTime();
        until = request.until(sent);
        try {
            end = locks.timer().schedule(this::isLost, until - now, NANOSECONDS);
            renewal = locks.timer().schedule(this::renew, sent + third - now, NANOSECONDS);
        } catch (RejectedExecutionException e) {
            return; // The locks are closed: the lease ends by itself.
        }
    }

    private synchronized void renew() {
        if (state == State.HELD) {
            long sent = System.nanoTime();
            renewal = locks.timer().schedule(this::renew, third / 2, NANOSECONDS); // If there is no answer until then.
            locks.link().ask(request.renewing()).whenComplete((answer, failure) -> told(answer, failure, sent));
        }
    }

    /** Takes in the answer to a renewal that was sent then. */
    private synchronized void told(Long answer, Throwable failure, long sent) {
        if (state != State.HELD) {
            return;
        }
        if (failure != null) {
            renewal.cancel(false);
            renewal = locks.timer().schedule(this::renew, third / 10, NANOSECONDS);
        } else if (!request.holds(answer, fence)) {
            lose();
        } else if (request.until(sent) - until > 0) {
            prolong(sent);
        }
    }
}
