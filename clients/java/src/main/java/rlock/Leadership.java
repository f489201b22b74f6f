package rlock;

import java.time.Duration;
import java.util.List;
import java.util.function.Consumer;

/**
 * A hold with a published value, from {@link Election#campaign} until it is resigned, closed or lost. A leader that stalls or
 * loses its connection may notice this only after another one leads: send {@link #fence} with each write.
 */
public final class Leadership extends Hold {
    Leadership(Client client, List<String> keys, boolean reportsLoss, Consumer<Duration> onRisk) {
        super(client, keys, 1, reportsLoss, onRisk);
    }

    /**
     * Publishes another value, 0 to 1024 bytes, which observers receive under the same fence.
     *
     * @throws LostException if the leadership was lost
     * @throws IllegalArgumentException if the value is too long
     * @throws RlockException {@code Unavailable}, after which either value may be published
     */
    public void proclaim(byte[] value) {
        client.join(() -> client.call(null, (to, call) -> Format.proclaim(to, call, number, value)));
    }

    /** The same with a text, as UTF-8. */
    public void proclaim(String value) {
        proclaim(Election.bytes(value));
    }

    /** Ends the leadership: the same as {@link #close}. */
    public void resign() {
        close();
    }
}
