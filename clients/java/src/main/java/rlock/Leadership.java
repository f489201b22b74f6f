package rlock;

import java.util.List;

/**
 * A hold with a value that its leader publishes, from {@link Election#campaign} until it resigns or is closed, or until it is
 * lost. Another one may lead before this one notices that it stalled or was cut off: send {@link #fence} along with each
 * write.
 */
public final class Leadership extends Hold {
    Leadership(Client client, List<String> keys, boolean tellsLoss) {
        super(client, keys, tellsLoss);
    }

    /**
     * Publishes another value, 0 to 1024 bytes; observers receive it under the same fence.
     *
     * @throws LostException if the leadership was lost
     * @throws IllegalArgumentException if the value is too long
     * @throws RlockException {@code Unavailable}: then it is not known which value is published
     */
    public void proclaim(byte[] value) {
        client.join(client.call(Client.PROCLAIM, null, event -> event.u64(number).bytes(value, value.length)));
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
