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
 * Locks for ShedLock. {@code lockAtMostFor} is a lease that is not renewed. The server keeps the lock for {@code lockAtLeastFor},
 * even if the process ends after {@code unlock}. The caller closes the client.
 */
public final class RlockProvider implements LockProvider {
    private final Client client;
    private final String prefix;

    /** On the server, the name of a task's lock is {@code shedlock:} and the task's name. */
    public RlockProvider(Client client) {
        this(client, "shedlock:");
    }

    /** The same, with another prefix. */
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

        /** @throws rlock.LostException if the task took longer than {@code lockAtMostFor}: another process may have run it meanwhile */
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
