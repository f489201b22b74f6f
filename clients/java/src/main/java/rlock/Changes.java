package rlock;

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import rlock.Election.Change;
import rlock.Format.Action;

/**
 * The current leader, then each change, from {@link Election#observe} until it is closed. Any thread may use it.
 *
 * <p>The first change is the current leader, or none. Each change comes once, and fences never decrease. After a new connection, a
 * fail-over or a moved slot, the next change is the leader of that moment, and it {@link Change#isMissed}. At most 1024 changes
 * are kept: older ones are dropped, and the next one is missed.
 *
 * <p>The observer continues while the server is unreachable. An error that does not pass by itself ends it. Each call then throws
 * this error after all earlier changes have been taken: {@code Denied}, {@code NotALock}, {@code ModuleMissing}, {@code Refused},
 * or {@code Closed} after the client or the observer has been closed.
 */
public final class Changes implements AutoCloseable {
    /** How many changes are kept. */
    private static final int MAX = 1024;

    private final Client client;
    /** Its monitor, which no user can have, guards the takers and the end too. */
    private final Deque<Change> untaken = new ArrayDeque<>();
    private final Queue<CompletableFuture<Change>> takers = new ArrayDeque<>();
    private final CompletableFuture<Action> observes;
    private Throwable end;

    Changes(Client client, String name) {
        this.client = client;
        observes = client.call(null, this::add, false, (to, call) -> Format.observe(to, call, Election.bytes(name)));
        observes.whenComplete((none, error) -> end(error));
    }

    private void add(Action it) {
        var change = Change.of(it);
        // A future that has already ended, such as a cancelled one, takes no change.
        for (CompletableFuture<Change> taker; (taker = takerOrKeep(change)) != null && !taker.complete(change);) {}
    }

    private CompletableFuture<Change> takerOrKeep(Change change) {
        synchronized (untaken) {
            var taker = takers.poll();
            if (taker == null && end == null) {
                untaken.add(change);
                if (untaken.size() > MAX) {
                    untaken.removeFirst();
                    untaken.addFirst(untaken.removeFirst().behindMissed());
                }
            }
            return taker;
        }
    }

    private void end(Throwable why) {
        List<CompletableFuture<Change>> left;
        synchronized (untaken) {
            if (end != null) {
                return;
            }
            end = why;
            left = List.copyOf(takers);
        }
        left.forEach(taker -> taker.completeExceptionally(why));
    }

    /** Waits for the next change. An interrupted thread takes none. */
    public Change next() throws InterruptedException {
        return client.await(nextAsync());
    }

    /** Waits at most this time; empty if there is no change. */
    public Optional<Change> poll(Duration timeout) throws InterruptedException {
        var millis = Engine.millis("timeout", Objects.requireNonNull(timeout, "timeout"));
        return Optional.ofNullable(client.await(nextAsync().completeOnTimeout(null, millis, TimeUnit.MILLISECONDS)));
    }

    /** The next change. A cancelled future takes none. Stages without {@code Async} must not block. */
    public CompletableFuture<Change> nextAsync() {
        var taker = new CompletableFuture<Change>();
        synchronized (untaken) {
            if (!untaken.isEmpty()) {
                return CompletableFuture.completedFuture(untaken.remove());
            }
            if (end != null) {
                return CompletableFuture.failedFuture(end);
            }
            takers.add(taker);
        }
        taker.whenComplete((change, error) -> forget(taker));
        return taker;
    }

    private void forget(CompletableFuture<Change> taker) {
        synchronized (untaken) {
            takers.remove(taker);
        }
    }

    /** Ends the observer, and drops the untaken changes. */
    @Override
    public void close() {
        end(new RlockException("Closed", "the observer has been closed", false));
        synchronized (untaken) {
            untaken.clear();
        }
        observes.cancel(false);
    }
}
