package rlock;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Contends for locks during faults, and reports what it saw to crates/rlock-client/tests/chaos/program.rs. */
final class Chaos {
    private static final List<ObjectNode> LINES = Collections.synchronizedList(new ArrayList<>());
    private static volatile boolean isOver;

    private final Client client;
    private final String key;
    private final Random random;
    private final boolean isCopied;
    private ObjectNode call;
    private ObjectNode seen;

    private Chaos(Client client, String key) {
        this.client = client;
        this.key = key;
        random = new Random(Long.parseLong(System.getenv("RLOCK_SEED")) ^ key.hashCode());
        isCopied = key.equals("copied") && copies() > 0;
    }

    private static int copies() {
        return Integer.parseInt(System.getenv("RLOCK_COPIES"));
    }

    /** Microseconds of the monotonic clock. */
    private static long now() {
        return System.nanoTime() / 1_000;
    }

    private static ObjectNode line() {
        return new ObjectMapper().createObjectNode();
    }

    private long between(int least, int most) {
        return least + random.nextInt(most - least);
    }

    private void asks(String verb, Long limitMillis) {
        call = line().put("key", key).put("verb", verb).put("asked", now());
        if (limitMillis != null) {
            call.put("limit", 1_000 * (limitMillis + (isCopied && !verb.equals("release") ? 1_000 : 0)));
        }
    }

    private void ended(String outcome) {
        LINES.add(call.put("ended", now()).put("outcome", outcome));
    }

    private static String code(Throwable error) {
        return error instanceof RlockException ? ((RlockException) error).code() : error instanceof LostException ? "Lost" : error.toString();
    }

    private Hold ask() throws InterruptedException {
        var kind = random.nextInt(6);
        var lease = Duration.ofMillis(kind == 0 ? 600 : kind < 3 ? 2_000 : 1_000);
        var terms = kind == 0 ? Terms.standard().fixedLease(lease) : Terms.standard().lease(lease);
        if (isCopied) {
            terms = terms.replicas(copies());
        } else if (random.nextInt(4) == 0) {
            terms = terms.bound(Duration.ofMillis(between(400, 1_500)));
        }
        var isShared = key.equals("shared") && random.nextInt(3) > 0;
        var lock = (isShared ? client.getReadLock(key) : client.getLock(key)).with(terms);
        var how = random.nextInt(4);
        var wait = between(50, 3_000);
        asks(how == 0 ? "try" : how == 1 ? "wait with a limit" : "wait", how == 0 ? Long.valueOf(4_000) : how == 1 ? Long.valueOf(wait + 1_000) : null);
        var granted = lock.acquireAsync(how == 0 ? Duration.ZERO : how == 1 ? Duration.ofMillis(wait) : null, null);
        var patience = System.nanoTime() + 1_000_000L * (random.nextInt(8) == 0 ? random.nextInt(100) : 20_000);
        Hold hold = null;
        try {
            while (!granted.isDone() && System.nanoTime() < patience && !isOver) {
                try {
                    granted.get(20, TimeUnit.MILLISECONDS);
                } catch (TimeoutException notYet) {
                    // The call waits.
                }
            }
            if (granted.cancel(false)) {
                ended("dropped");
                return null;
            }
            hold = granted.get();
            ended(hold == null ? "refused" : "granted");
        } catch (ExecutionException failed) {
            ended(code(failed.getCause()));
        }
        if (hold != null) {
            seen = line().put("key", key).put("owner", hold.owner()).put("fence", hold.fence()).put("shared", isShared)
                    .put("lease", lease.toMillis() * 1_000).put("asked", call.get("asked").asLong()).put("granted", now());
        }
        return hold;
    }

    /** Whether the lock is valid, both before and after reading the clock. */
    private boolean sample(Hold hold) {
        var before = hold.isValid();
        var moment = now();
        if (before && hold.isValid()) {
            if (!seen.has("first")) {
                seen.put("first", moment);
            }
            seen.put("last", moment);
            return true;
        }
        if (!seen.has("doubted")) {
            seen.put("doubted", moment);
        }
        return false;
    }

    private void run() {
        try {
            for (; !isOver; Thread.sleep(between(5, 100))) {
                var hold = ask();
                if (hold == null) {
                    continue;
                }
                var lengths = new long[] {between(800, 2_500), between(100, 800), between(5, 100), between(5, 100)};
                var until = now() + 1_000 * lengths[random.nextInt(4)];
                while (sample(hold) && now() < until && !isOver) {
                    Thread.sleep(2);
                }
                seen.put("ended", now()).put("end", seen.has("doubted") ? "lost" : "released");
                asks("release", 4_000L);
                try {
                    hold.close();
                    ended("released");
                } catch (RuntimeException error) {
                    ended(code(error));
                }
                LINES.add(seen);
            }
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    public static void main(String[] arguments) throws Exception {
        try (var client = Client.builder(System.getenv("RLOCK_URL")).responseTimeout(Duration.ofSeconds(1))
                .retryTimeout(Duration.ofSeconds(4)).build()) {
            var threads = new ArrayList<Thread>();
            for (var key : System.getenv("RLOCK_KEYS").split(" ")) {
                threads.add(new Thread(new Chaos(client, key)::run));
            }
            threads.forEach(Thread::start);
            System.in.readAllBytes();
            isOver = true;
            for (var thread : threads) {
                thread.join();
            }
        }
        for (var line : LINES) {
            System.out.println(line);
        }
    }
}
