package rlock;

import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.function.Consumer;

/** A hold of one lock or several, from the grant until the release or a loss. Any thread may use it. */
public class Hold implements AutoCloseable {
    final Client client;
    private final List<String> keys;
    private final boolean reportsLoss;
    /** Takes the time that is left when the hold is at risk; {@code null} if nobody wants to know. */
    final Consumer<Duration> onRisk;
    private final CompletableFuture<RuntimeException> over = new CompletableFuture<>();
    volatile long number;
    private volatile String owner;
    private volatile Map<String, Long> fences;
    /** Its monitor, which no user can have, guards the fields below. */
    private final Object releasing = new Object();
    private CompletableFuture<Void> released;
    /** How many are not released yet. */
    private int permits;

    Hold(Client client, List<String> keys, int permits, boolean reportsLoss, Consumer<Duration> onRisk) {
        this.client = client;
        this.keys = keys;
        this.permits = permits;
        this.reportsLoss = reportsLoss;
        this.onRisk = onRisk;
    }

    void granted(Format.Action it) {
        number = it.guard;
        owner = it.owner;
        fences = Collections.unmodifiableMap(it.fences);
    }

    /** Ends the hold. Without a reason, the client has been closed. */
    void lost(String why) {
        over.complete(why == null ? RlockException.closed() : lostFor(why));
    }

    private LostException lostFor(String why) {
        return new LostException(String.join(", ", keys) + ": the lock was lost: " + why);
    }

    public List<String> keys() {
        return keys;
    }

    /** The holder's name on the server. */
    public String owner() {
        return owner;
    }

    /** Larger than the fence of every earlier holder: send it with each write. For several keys it is the largest fence. */
    public long fence() {
        return Collections.max(fences.values());
    }

    /** The fence of each key. */
    public Map<String, Long> fences() {
        return fences;
    }

    /**
     * How long the lock stays held if the server sends nothing more; zero if it is lost or released. It asks the client's thread:
     * in a monitor that a listener or {@code onRisk} waits for, both would wait for ever.
     */
    public Duration remaining() {
        return isReleased() || over.isDone() ? Duration.ZERO : Duration.ofNanos(client.remaining(number));
    }

    /** Whether the lock is held now, as {@link #remaining} says. */
    public boolean isValid() {
        return !remaining().isZero();
    }

    /** @throws LostException unless the lock is held now */
    public void check() {
        if (isValid()) {
            return;
        }
        var known = over.getNow(null);
        if (known instanceof LostException) {
            throw known;
        }
        if (isReleased()) {
            throw lostFor(Client.why(Format.ENDING_RELEASED));
        }
        throw lostFor(known == null ? Client.why(Format.ENDING_LEASE_ENDED) : known.getMessage());
    }

    /**
     * Runs {@code action} in {@code executor} when the lock is lost; at once if it has been lost. {@code Runnable::run} runs it on
     * the client's thread, where it must not block.
     */
    public Hold onLost(Consumer<LostException> action, Executor executor) {
        Objects.requireNonNull(action, "action");
        over.thenAcceptAsync(why -> {
            if (why instanceof LostException) {
                action.accept((LostException) why);
            }
        }, executor);
        return this;
    }

    private boolean isReleased() {
        synchronized (releasing) {
            return released != null;
        }
    }

    /**
     * Releases the lock, and waits for the server's answer. Only the first call has an effect.
     *
     * <p>In a stage on the client's thread, which must not block, it throws an {@link IllegalStateException}, but releases the lock
     * all the same, so that the end of a block leaves nothing. Other calls that are refused there have no effect.
     *
     * @throws LostException if the lock was lost before, unless its terms ignore that
     */
    @Override
    public void close() {
        client.join(releaseAsync());
    }

    /**
     * The same, but the server keeps the lock until {@code least} after the grant.
     *
     * @throws IllegalArgumentException if {@code least} is below zero or above 30 days; the lock stays held then
     */
    public void releaseAfter(Duration least) {
        Objects.requireNonNull(least, "least");
        client.join(() -> release(null, least));
    }

    /**
     * Releases some permits of a semaphore, and waits for the server's answer. The hold keeps the others; with its last permits
     * it ends, as by {@link #close}.
     *
     * @throws IllegalArgumentException unless {@code permits} is from 1 to the number that is still held, which is 1 for other
     *     locks; nothing is released then
     * @throws LostException if the lock was lost before, unless its terms ignore that; or if all permits were released
     */
    public void release(int permits) {
        client.join(() -> releaseAsync(permits));
    }

    public CompletableFuture<Void> releaseAsync() {
        return release(null, null);
    }

    /** The same as {@link #release}, without waiting. A {@link LostException} completes the future. */
    public CompletableFuture<Void> releaseAsync(int permits) {
        return release(permits, null);
    }

    /** Without a number, it releases all permits. */
    private CompletableFuture<Void> release(Integer some, Duration least) {
        var time = Engine.millis("least", least);
        if (time > Engine.LONGEST.toMillis()) {
            // The engine refuses it too, but only when the hold has ended here.
            throw new IllegalArgumentException("least is " + least + ", it must be at most " + Engine.LONGEST.toDays() + " days");
        }
        var end = new CompletableFuture<Void>();
        boolean isLast;
        synchronized (releasing) {
            if (released != null) {
                var lost = lostFor(Client.why(Format.ENDING_RELEASED));
                return some == null ? copy(released) : CompletableFuture.failedFuture(lost);
            }
            if (some != null && (some < 1 || some > permits)) {
                throw new IllegalArgumentException("permits is " + some + ", it must be from 1 to " + permits);
            }
            permits -= some == null ? permits : some;
            isLast = permits == 0;
            if (isLast) {
                released = end;
            }
        }
        Client.Event event = (to, call) -> isLast
                ? Format.release(to, call, number, time)
                : Format.releasePermits(to, call, number, some);
        client.call(null, null, true, event).whenComplete((action, failure) -> {
            // A client that is closed does not ask whether it was lost.
            var known = over.getNow(null);
            var error = failure != null && known instanceof LostException ? known : failure;
            // Another thread may have released the rest before this event was sent.
            var isLost = error instanceof LostException && (isLast || !isReleased());
            try {
                if (isLost) {
                    // The release may be the first to learn of it.
                    over.complete((LostException) error);
                }
                if (isLast) {
                    client.forget(number);
                }
            } finally {
                if (error == null || (error instanceof LostException && !(isLost && reportsLoss))) {
                    end.complete(null);
                } else {
                    Client.fail(end, error);
                }
            }
        });
        return copy(end);
    }

    /** Each caller gets a copy, so that cancelling it does not affect other callers. */
    private static CompletableFuture<Void> copy(CompletableFuture<Void> end) {
        var copy = new CompletableFuture<Void>();
        end.whenComplete((none, error) -> {
            if (error == null) {
                copy.complete(null);
            } else {
                Client.fail(copy, error);
            }
        });
        return copy;
    }

    /** Makes the lease last for at least this time from now. */
    public void extend(Duration lease) {
        var millis = Engine.millis("lease", Objects.requireNonNull(lease, "lease"));
        client.join(() -> client.call(null, (to, call) -> Format.extend(to, call, number, millis)));
    }

    /** Makes an exclusive hold shared. */
    public void downgrade() {
        client.join(() -> client.call(null, (to, call) -> Format.downgrade(to, call, number)));
    }

    /**
     * Makes a shared hold exclusive; false after {@code wait}, and the hold is then still shared. With {@code null} there is no
     * limit. Throws a {@link LostException} if the shared hold is lost meanwhile, and acquires nothing then.
     */
    public boolean upgrade(Duration wait) {
        var millis = Engine.millis("wait", wait);
        var end = client.join(() -> client.call(this, (to, call) -> Format.upgrade(to, call, number, millis)));
        return end.kind == Format.Action.GRANTED;
    }
}
