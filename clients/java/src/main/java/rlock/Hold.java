package rlock;

import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.function.Consumer;

/** A lock, or several, that is held: from its grant until it is released or lost. Any thread may use it. */
public class Hold implements AutoCloseable {
    final Client client;
    private final List<String> keys;
    private final boolean tellsLoss;
    private final CompletableFuture<RuntimeException> over = new CompletableFuture<>();
    volatile long number;
    private volatile String owner;
    private volatile Map<String, Long> fences;
    private CompletableFuture<Void> released;

    Hold(Client client, List<String> keys, boolean tellsLoss) {
        this.client = client;
        this.keys = keys;
        this.tellsLoss = tellsLoss;
    }

    void granted(Engine.Action it) {
        number = it.guard;
        owner = it.text;
        fences = Collections.unmodifiableMap(it.fences);
    }

    /** Without a reason the client has been closed. */
    void lost(String why) {
        over.complete(why == null ? RlockException.closed() : lostFor(why));
    }

    private LostException lostFor(String why) {
        return new LostException(String.join(", ", keys) + ": the lock was lost: " + why);
    }

    public List<String> keys() {
        return keys;
    }

    /** What the server calls the holder. */
    public String owner() {
        return owner;
    }

    /** Larger than the fence of every earlier holder: send it along with each write. Of several keys it is the largest. */
    public long fence() {
        return Collections.max(fences.values());
    }

    /** The fence of each key. */
    public Map<String, Long> fences() {
        return fences;
    }

    /** For how long it is held if nothing is heard any more; zero if it is lost or released. */
    public Duration remaining() {
        return isReleased() || over.isDone() ? Duration.ZERO : Duration.ofNanos(client.remaining(number));
    }

    /** Judged now. */
    public boolean isValid() {
        return !remaining().isZero();
    }

    /** @throws LostException unless it is held, judged now */
    public void check() {
        if (isValid()) {
            return;
        }
        var known = over.getNow(null);
        throw known instanceof LostException ? known : lostFor(Client.why(isReleased() ? 2 : 0));
    }

    /** Has {@code action} run by {@code executor} when the lock is lost; at once if it is already. */
    public Hold onLost(Consumer<LostException> action, Executor executor) {
        over.thenAcceptAsync(why -> {
            if (why instanceof LostException) {
                action.accept((LostException) why);
            }
        }, executor);
        return this;
    }

    private synchronized boolean isReleased() {
        return released != null;
    }

    /**
     * Releases the lock, and waits for the server's answer. Only the first call does something.
     *
     * @throws LostException if it was lost before, unless its terms say otherwise
     */
    @Override
    public void close() {
        client.join(releaseAsync());
    }

    /** The same, but the server keeps the lock until so long after its grant. */
    public void releaseAfter(Duration least) {
        client.join(release(least));
    }

    public CompletableFuture<Void> releaseAsync() {
        return release(null);
    }

    private CompletableFuture<Void> release(Duration least) {
        var time = Engine.millis("least", least);
        CompletableFuture<Void> end;
        synchronized (this) {
            if (released != null) {
                return released.copy();
            }
            end = released = new CompletableFuture<>();
        }
        client.forget(number);
        client.call(Client.RELEASE, null, event -> event.u64(number).u64(time)).whenComplete((action, error) -> {
            if (error == null || (error instanceof LostException && !tellsLoss)) {
                end.complete(null);
            } else {
                end.completeExceptionally(error);
            }
        });
        // Who cancels his future cancels no other's.
        return end.copy();
    }

    /** Sets the lease to at least this long from now. */
    public void extend(Duration lease) {
        var millis = Engine.millis("lease", lease);
        client.join(client.call(Client.EXTEND, null, event -> event.u64(number).u64(millis)));
    }

    /** Shares what is held alone. */
    public void downgrade() {
        client.join(client.call(Client.DOWNGRADE, null, event -> event.u64(number)));
    }

    /** Has alone what is shared; false if {@code wait} was not enough, and then it is shared as before. */
    public boolean upgrade(Duration wait) {
        var millis = Engine.millis("wait", wait);
        var end = client.join(client.call(Client.UPGRADE, this, event -> event.u64(number).u64(millis)));
        return end.kind == Engine.Action.GRANTED;
    }
}
