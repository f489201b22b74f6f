package rlock.spring;

import java.util.Objects;
import java.util.concurrent.locks.Lock;
import org.springframework.integration.support.locks.LockRegistry;
import rlock.Client;
import rlock.Terms;

/**
 * Locks for Spring Integration, instead of its {@code RedisLockRegistry}. The server queues the waiters, and the client renews the
 * holds. An {@code unlock} after a loss throws {@link rlock.LostException}. The caller closes the client.
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
        return client.getLock(prefix + ":" + Objects.requireNonNull(key, "key")).with(terms);
    }
}
