package rlock;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.charset.StandardCharsets;
import java.util.List;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.util.SafeEncoder;

/** A connection of the test's own, to look at the server. */
final class Seen implements AutoCloseable {
    private final Jedis jedis;

    Seen(int port) {
        jedis = new Jedis("127.0.0.1", port);
    }

    synchronized Object call(String command, String... arguments) {
        return jedis.sendCommand(() -> SafeEncoder.encode(command), arguments);
    }

    /** RLOCK.INFO as text: name=value pairs. */
    String info(String key) {
        return text(call("RLOCK.INFO", key));
    }

    private static String text(Object reply) {
        if (reply instanceof byte[] bytes) {
            return new String(bytes, StandardCharsets.UTF_8);
        }
        if (!(reply instanceof List<?> list)) {
            return String.valueOf(reply);
        }
        var all = new StringBuilder();
        for (int i = 0; i < list.size(); i++) {
            boolean name = list.get(i) instanceof byte[] && i % 2 == 0 && i + 1 < list.size();
            all.append(text(list.get(i))).append(name ? "=" : " ");
        }
        return all.toString();
    }

    void queued(String key, int places) {
        Eventually.so(places + " places", () -> info(key).contains("queued=" + places + " "));
    }

    void free(String key) {
        Eventually.so("free, and nobody queued", () -> info(key).contains("mode=free") && info(key).contains("queued=0 "));
    }

    void one(String key) {
        assertTrue(info(key).matches(".*holders=owner=\\S+ count=1 .*") && info(key).split("owner=").length == 2, info(key));
    }

    synchronized String stats() {
        return jedis.info("commandstats");
    }

    @Override
    public synchronized void close() {
        jedis.close();
    }
}
