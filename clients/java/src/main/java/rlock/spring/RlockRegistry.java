package rlock.spring;

import java.util.Objects;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import org.springframework.integration.support.locks.LockRegistry;
import rlock.Client;
import rlock.Hold;
import rlock.RLock;
import rlock.Terms;

/**
 * Locks for Spring Integration, instead of its {@code RedisLockRegistry}. The server queues the waiters, and the client renews the
 * holds. After a loss, {@code unlock} throws {@link rlock.LostException}, and so does every method that enters the lock again
 * before. The caller closes the client.
 */
public final class RlockRegistry implements LockRegistry {
    private final Client client;
    private final String prefix;
    private final Terms terms;

    /** On the server, the name of a key's lock is {@code prefix:key}. */
    public RlockRegistry(Client client, String prefix) {
        this(client, prefix, Terms.standard());
    }

    /** The same, with terms for all of its locks. */
    public RlockRegistry(Client client, String prefix, Terms terms) {
        this.client = Objects.requireNonNull(client, "client");
        this.prefix = Objects.requireNonNull(prefix, "prefix");
        this.terms = Objects.requireNonNull(terms, "terms");
    }

    @Override
    public Lock obtain(Object key) {
        return new Entered(client.getLock(prefix + ":" + Objects.requireNonNull(key, "key")).with(terms));
    }

    /**
     * A thread that has lost the lock cannot enter it again before it has unlocked it. It would get a new grant, and the inner
     * unlock would release that, while the outer holder believes that it still holds: Spring's leaders enter and unlock their
     * lock again and again to see whether they still have it.
     */
    private static final class Entered implements Lock {
        private final RLock lock;

        Entered(RLock lock) {
            this.lock = lock;
        }

        private RLock unlessLost() {
            lock.hold().ifPresent(Hold::check);
            return lock;
        }

        @Override
        public void lock() {
            unlessLost().lock();
        }

        @Override
        public void lockInterruptibly() throws InterruptedException {
            unlessLost().lockInterruptibly();
        }

        @Override
        public boolean tryLock() {
            return unlessLost().tryLock();
        }

        @Override
        public boolean tryLock(long wait, TimeUnit unit) throws InterruptedException {
            return unlessLost().tryLock(wait, unit);
        }

        @Override
        public void unlock() {
            lock.unlock();
        }

        @Override
        public Condition newCondition() {
            return lock.newCondition();
        }
    }
}
