package rlock;

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import java.util.function.Consumer;

/**
 * A lock on the server. It is a {@link Lock} of Java, which a thread holds, with the methods of Redisson. {@link #acquire} and
 * {@link #acquireAsync} return a {@link Hold} instead, which any thread may release.
 *
 * <p>A thread re-enters its locks, and must unlock each as often as it has locked it. The terms of its first call stay: an inner
 * {@code lock()} does not renew the lease of an outer {@code lock(1, SECONDS)}. Its permits stay too: an inner call for more of them
 * gets no more. If two threads would wait for each other, the second wait fails with {@code Deadlock}.
 */
public final class RLock implements Lock {
    private static final Format.Owner NEW = new Format.Owner(Format.OWNING_NEW, 0, "");

    private final Client client;
    private final List<String> keys;
    private final Format.Mode mode;
    private final Terms terms;
    private final Consumer<Duration> onRisk;

    RLock(Client client, List<String> keys, Format.Mode mode, Terms terms) {
        this(client, keys, mode, terms, null);
        keys.forEach(key -> Engine.checkText("name", key));
    }

    private RLock(Client client, List<String> keys, Format.Mode mode, Terms terms, Consumer<Duration> onRisk) {
        this.client = client;
        this.keys = keys;
        this.mode = mode;
        this.terms = terms;
        this.onRisk = onRisk;
    }

    /** The same lock, with other terms. */
    public RLock with(Terms terms) {
        return new RLock(client, keys, mode, terms, onRisk);
    }

    /**
     * The same lock, whose holds call {@code action} if no renewal has been confirmed for half of the lease, with the time until
     * the hold is lost unless a renewal succeeds; again only after one has succeeded. The client's thread calls it, so it must be
     * quick and must not block. What it throws is logged.
     */
    public RLock onRisk(Consumer<Duration> action) {
        return new RLock(client, keys, mode, terms, Objects.requireNonNull(action, "action"));
    }

    public String getName() {
        return String.join(", ", keys);
    }

    /** Waits for the lock. An interrupt does not end the wait; the thread stays interrupted. */
    @Override
    public void lock() {
        lock(terms);
    }

    /** The same, with a lease that is not renewed; −1 stands for the lock's own terms. A thread that re-enters keeps its terms. */
    public void lock(long lease, TimeUnit unit) {
        lock(termsOf(lease, unit));
    }

    private void lock(Terms terms) {
        push(client.join(() -> granted(null, client.threadActivity(), terms)));
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
        push(interruptibly(null, terms));
    }

    /** Tries once. */
    @Override
    public boolean tryLock() {
        return push(client.join(() -> granted(Duration.ZERO, client.threadActivity(), terms)));
    }

    /** Waits at most this time; above 30 days, which is the limit of other waits, without limit. */
    @Override
    public boolean tryLock(long wait, TimeUnit unit) throws InterruptedException {
        return tryLock(wait, -1, unit);
    }

    /** The same, with a lease that is not renewed; −1 stands for the lock's own terms. A thread that re-enters keeps its terms. */
    public boolean tryLock(long wait, long lease, TimeUnit unit) throws InterruptedException {
        var most = Duration.ofNanos(Math.max(0, unit.toNanos(wait)));
        // Users of Lock write Long.MAX_VALUE to wait for ever.
        return push(interruptibly(most.compareTo(Engine.LONGEST) > 0 ? null : most, termsOf(lease, unit)));
    }

    /**
     * Releases the last hold of this thread.
     *
     * @throws LostException if the lock was lost before
     * @throws IllegalMonitorStateException if this thread does not hold the lock
     */
    @Override
    public void unlock() {
        var held = client.owned().get(id());
        if (held == null) {
            throw new IllegalMonitorStateException(getName() + " is not held by this thread");
        }
        var hold = held.pop();
        if (held.isEmpty()) {
            client.owned().remove(id());
        }
        hold.close();
    }

    /** @throws UnsupportedOperationException always */
    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("a lock on a server has no conditions");
    }

    /** Whether this thread holds the lock now. */
    public boolean isHeldByCurrentThread() {
        var held = client.owned().get(id());
        return held != null && held.peek().isValid();
    }

    /** How often this thread has locked it without unlocking it. */
    public int getHoldCount() {
        var held = client.owned().get(id());
        return held == null ? 0 : held.size();
    }

    /** The last hold of this thread, for example to read its fence. */
    public Optional<Hold> hold() {
        return Optional.ofNullable(client.owned().get(id())).map(ArrayDeque::peek);
    }

    /** Whether any owner holds the lock; for several keys, the first one. */
    public boolean isLocked() {
        var first = keys.stream().findFirst().orElseThrow(
                () -> new IllegalArgumentException("keys is 0 keys, it must be 1 to 1024 different keys"));
        return !client.info(first).get("mode").equals("free");
    }

    /** Ends every hold of the lock; true if there was one. */
    public boolean forceUnlock() {
        long ended = 0;
        for (var key : keys) {
            ended += client.force(key);
        }
        return ended > 0;
    }

    /** Waits for the lock: {@code try (var hold = lock.acquire())}. The hold belongs to no thread, so none can re-enter it. */
    public Hold acquire() throws InterruptedException {
        return client.await(() -> granted(null, null, terms));
    }

    /** Waits at most this time; empty if the lock was not acquired. */
    public Optional<Hold> tryAcquire(Duration wait) throws InterruptedException {
        Objects.requireNonNull(wait, "wait");
        return Optional.ofNullable(client.await(() -> granted(wait, null, terms)));
    }

    /**
     * Waits for the lock. If the future ends before the grant, for example because it is cancelled or by {@code orTimeout}, the
     * request is withdrawn. Stages without {@code Async} must not block.
     */
    public CompletableFuture<Hold> acquireAsync() {
        return granted(null, null, terms);
    }

    /** The same; the result is {@code null} after {@code wait}. Without a wait there is no limit, and without an activity a new owner. */
    public CompletableFuture<Hold> acquireAsync(Duration wait, Client.Activity activity) {
        return granted(wait, activity, terms);
    }

    private static Terms fixed(Terms terms, long lease, TimeUnit unit) {
        return terms.fixedLease(Duration.ofNanos(unit.toNanos(lease)));
    }

    private Terms termsOf(long lease, TimeUnit unit) {
        return lease == -1 ? terms : fixed(terms, lease, unit);
    }

    private List<Object> id() {
        return List.of(mode.mode, keys);
    }

    private boolean push(Hold hold) {
        if (hold == null) {
            return false;
        }
        client.owned().computeIfAbsent(id(), id -> new ArrayDeque<>()).push(hold);
        return true;
    }

    private Hold interruptibly(Duration wait, Terms terms) throws InterruptedException {
        if (Thread.interrupted()) {
            throw new InterruptedException();
        }
        return client.await(() -> granted(wait, client.threadActivity(), terms));
    }

    private CompletableFuture<Hold> granted(Duration wait, Client.Activity activity, Terms terms) {
        return granted(wait, activity, terms, new Hold(client, keys, mode.permits, terms.reportsLoss, onRisk), Format::lock);
    }

    /** Acquires the lock as a leader, and publishes a value. */
    CompletableFuture<Leadership> campaign(byte[] value, Duration wait, Client.Activity activity) {
        var leadership = new Leadership(client, keys, terms.reportsLoss, onRisk);
        return granted(wait, activity, terms, leadership, (to, call, wanted, most, form) ->
                Format.campaign(to, call, wanted, most, form, value));
    }

    /** Writes the event that asks for the lock. */
    private interface Asking {
        Engine.Writer write(Engine.Writer to, long call, Format.Wanted wanted, long wait, Format.Terms terms);
    }

    private <H extends Hold> CompletableFuture<H> granted(Duration wait, Client.Activity activity, Terms terms, H hold,
            Asking event) {
        var owner = activity == null ? NEW : new Format.Owner(Format.OWNING_ACTIVITY, activity.number, "");
        var wanted = new Format.Wanted(owner, keys, mode);
        var form = terms.form();
        var most = Engine.millis("wait", wait);
        var call = client.call(hold, (to, number) -> event.write(to, number, wanted, most, form));
        var granted = new CompletableFuture<H>();
        call.whenComplete((action, error) -> {
            if (error != null) {
                Client.fail(granted, error);
            } else if (!granted.complete(action.kind == Format.Action.REFUSED ? null : hold)
                    && action.kind != Format.Action.REFUSED) {
                // It was cancelled at the same moment.
                client.untaken(hold.number);
            }
        });
        granted.whenComplete((it, error) -> {
            // It may have ended otherwise than by the grant. After the grant this does nothing.
            call.cancel(false);
        });
        return granted;
    }
}
