package rlock;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.UUID;

/** What to ask for. Made by {@link Locks#on}, ended by {@link #lock()}. Used by one thread. */
public final class Request {
    private static final Duration LONGEST = Duration.ofHours(24);
    private static final String HOST = host();

    private final Locks locks;
    private final List<String> keys;
    private String owner = HOST + ":" + ProcessHandle.current().pid() + ":" + UUID.randomUUID();
    private Duration lease = Duration.ofSeconds(30);
    private Duration wait;
    private boolean shared;
    private Integer limit;
    private Integer permits;
    private Runnable onLoss = () -> {};

    Request(Locks locks, List<String> keys) {
        this.locks = locks;
        this.keys = List.copyOf(keys);
    }

    /** How long the hold lasts if it is not renewed, as when its process dies: 1 ms to 24 h, 30 s if left out. */
    public Request lease(Duration lease) {
        this.lease = lease;
        return this;
    }

    /** How long to queue: 0 to 24 h. 0 is one try. Left out, {@link #lock()} waits until it is interrupted. */
    public Request waitAtMost(Duration wait) {
        this.wait = wait;
        return this;
    }

    /** Holds the lock together with others that ask for the same. Not with several keys. */
    public Request shared() {
        shared = true;
        return this;
    }

    /** Makes the lock a semaphore of n permits, 1 to 1,000,000. Implies {@link #shared()}. Every caller names the same n. */
    public Request limit(int n) {
        shared = true;
        limit = n;
        return this;
    }

    /** How many permits of a {@link #limit} to take, all or none: 1 to the limit, 1 if left out. */
    public Request permits(int k) {
        permits = k;
        return this;
    }

    /**
     * Names who asks: 1 to 256 bytes of UTF-8, none of them 0x00 to 0x20 or 0x7f, not beginning with {@code rlock:}.
     * Left out, it is host:pid:random, new for each request. Give the locks of one sequential activity the same owner, so
     * that the server sees deadlocks. An owner does one thing after the other, and never takes a lock that it has.
     */
    public Request owner(String owner) {
        this.owner = owner;
        return this;
    }

    /** Is run once, on another thread, when the lock is lost; not after its release. */
    public Request onLoss(Runnable onLoss) {
        this.onLoss = onLoss;
        return this;
    }

    /**
     * Takes the lock, and waits for it as {@link #waitAtMost} says. Interrupting ends the wait, and withdraws the request,
     * within a second or in the background.
     *
     * @throws LockException.NotAcquired if the wait is over, or somebody withdrew the request
     * @throws LockException.Refused if the server refuses
     * @throws LockException if the server could not be reached for a whole lease, or until the wait was over
     * @throws IllegalArgumentException if an argument is out of its range; nothing is sent then
     */
    public Held lock() throws InterruptedException {
        check();
        lease = Duration.ofMillis(lease.toMillis()); // As the server will count it.
        return locks.lock(this);
    }

    private static String host() {
        try {
            String host = InetAddress.getLocalHost().getHostName();
            return host.matches("[!-~]{1,128}") ? host : "unknown";
        } catch (UnknownHostException e) {
            return "unknown";
        }
    }

    private void check() {
        must(lease.compareTo(Duration.ofMillis(1)) >= 0 && lease.compareTo(LONGEST) <= 0, "lease", lease, "1 ms to 24 h");
        must(wait == null || !wait.isNegative() && wait.compareTo(LONGEST) <= 0, "wait", wait, "0 to 24 h");
        must(limit == null || limit >= 1 && limit <= 1_000_000, "limit", limit, "1 to 1000000");
        must(permits == null || limit != null, "permits", permits, "given together with limit");
        must(permits == null || permits >= 1 && permits <= limit, "permits", permits, "1 to " + limit + ", the limit");
        must(keys.size() >= 1 && keys.size() <= 1024, "the number of keys", keys.size(), "1 to 1024");
        must(keys.size() == 1 || !shared, "shared", shared, "left out with several keys");
        int length = owner.getBytes(StandardCharsets.UTF_8).length;
        must(length >= 1 && length <= 256, "owner", length + " bytes long", "1 to 256 bytes long");
        must(!owner.startsWith("rlock:"), "owner", "'" + owner + "'", "without 'rlock:' at its beginning");
        must(owner.chars().noneMatch(c -> c <= ' ' || c == 0x7f), "owner", "'" + owner + "'",
                "without the bytes 0x00 to 0x20 and 0x7f");
        var seen = new HashSet<String>();
        keys.forEach(key -> must(seen.add(key), "a key", "'" + key + "' twice", "named once"));
    }

    private static void must(boolean so, String argument, Object value, String range) {
        if (!so) {
            throw new IllegalArgumentException(argument + " is " + value + ", must be " + range);
        }
    }

    String owner() {
        return owner;
    }

    List<String> keys() {
        return keys;
    }

    void lost() {
        onLoss.run();
    }

    long leaseNanos() {
        return lease.toNanos();
    }

    /** When a lease that was asked for then may end. The server counts whole milliseconds: it may end 1 ms early. */
    long until(long sent) {
        return sent + lease.toNanos() - 1_000_000;
    }

    boolean isBounded() {
        return wait != null;
    }

    /** What is left of the wait, in nanoseconds. */
    long left(long start) {
        return wait == null ? Long.MAX_VALUE : Math.max(0, wait.toNanos() - (System.nanoTime() - start));
    }

    /** Whether the answer to a renewal says that all is still held under the fence. */
    boolean holds(Long answer, long fence) {
        return answer != null && answer == (keys.size() > 1 ? keys.size() : fence);
    }

    Link.Command acquiring(String... waiting) {
        var after = new ArrayList<String>();
        if (shared) {
            after.add("SHARED");
        }
        if (limit != null) {
            after.addAll(List.of("LIMIT", limit.toString(), "PERMITS", permits == null ? "1" : permits.toString()));
        }
        after.addAll(List.of(waiting));
        return leased("ACQUIRE", after);
    }

    Link.Command renewing() {
        return leased("RENEW", List.of());
    }

    Link.Command releasing() {
        return keys.size() > 1
                ? new Link.Command("RLOCK.MRELEASE", List.of(owner, String.valueOf(keys.size())), keys, List.of())
                : new Link.Command("RLOCK.RELEASE", List.of(), keys, List.of(owner));
    }

    Link.Command cancelling() {
        return new Link.Command("RLOCK.CANCEL", List.of(), keys.subList(0, 1), List.of(owner));
    }

    private Link.Command leased(String verb, List<String> after) {
        String milliseconds = String.valueOf(lease.toMillis());
        if (keys.size() > 1) {
            var before = List.of(owner, milliseconds, String.valueOf(keys.size()));
            return new Link.Command("RLOCK.M" + verb, before, keys, after);
        }
        var all = new ArrayList<>(List.of(owner, milliseconds));
        all.addAll(after);
        return new Link.Command("RLOCK." + verb, List.of(), keys, all);
    }
}
