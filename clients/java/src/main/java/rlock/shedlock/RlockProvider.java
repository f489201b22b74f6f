package rlock.shedlock;

import java.time.Duration;
import java.util.Objects;
import java.util.Optional;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.core.SimpleLock;
import rlock.Client;
import rlock.Hold;
import rlock.Terms;

/**
 * Locks for ShedLock. {@code lockAtMostFor} is a lease that is not renewed. {@code lockAtLeastFor} is kept by the server, even
 * if the process ends after {@code unlock}. The client stays the caller's, to be closed.
 */
public final class RlockProvider implements LockProvider {
    private final Client client;
    private final String prefix;

    /** The lock of a task is called {@code shedlock:} and its name on the server. */
    public RlockProvider(Client client) {
        this(client, "shedlock:");
    }

    /** The same, with another beginning of the names. */
    public RlockProvider(Client client, String prefix) {
        this.client = Objects.requireNonNull(client, "client");
        this.prefix = Objects.requireNonNull(prefix, "prefix");
    }

    @Override
    public Optional<SimpleLock> lock(LockConfiguration task) {
        var lock = client.getLock(prefix + task.getName()).with(Terms.standard().fixedLease(task.getLockAtMostFor()));
        var asked = System.nanoTime();
        try {
            return lock.tryAcquire(Duration.ZERO).map(hold -> new Held(hold, asked, task.getLockAtLeastFor()));
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            return Optional.empty();
        }
    }

    private static final class Held implements SimpleLock {
        private final Hold hold;
        private final long asked;
        /** Counted from the grant. */
        private final Duration least;

        Held(Hold hold, long asked, Duration least) {
            this.hold = hold;
            this.asked = asked;
            this.least = least;
        }

        /** @throws rlock.LostException if {@code lockAtMostFor} was not enough: another may have run the task meanwhile */
        @Override
        public void unlock() {
            hold.releaseAfter(least);
        }

        /** Empty if the lock is lost. */
        @Override
        public Optional<SimpleLock> extend(Duration most, Duration least) {
            var since = Duration.ofNanos(System.nanoTime() - asked);
            try {
                hold.extend(most);
            } catch (rlock.LostException lost) {
                return Optional.empty();
            }
            return Optional.of(new Held(hold, asked, since.plus(least)));
        }
    }
}
