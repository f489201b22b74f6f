package rlock.spring;

import java.util.Objects;
import java.util.concurrent.locks.Lock;
import org.springframework.integration.support.locks.LockRegistry;
import rlock.Client;
import rlock.Terms;

/**
 * Locks for Spring Integration, in place of its {@code RedisLockRegistry}: the server queues who waits, and the client renews what
 * is held. An {@code unlock} after a loss throws {@link rlock.LostException}. The client stays the caller's, to be closed.
 */
public final class RlockRegistry implements LockRegistry {
    private final Client client;
    private final String prefix;
    private final Terms terms;

    /** The lock of a key is called {@code prefix:key} on the server. */
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
        return client.getLock(prefix + ":" + Objects.requireNonNull(key, "key")).with(terms);
    }
}
