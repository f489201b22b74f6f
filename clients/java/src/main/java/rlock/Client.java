package rlock;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.channels.Selector;
import java.nio.charset.StandardCharsets;
import java.security.NoSuchAlgorithmException;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Queue;
import java.util.Set;
import java.util.WeakHashMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import javax.net.ssl.SSLContext;
import rlock.Engine.Writer;
import rlock.Format.Action;

/**
 * Locks of one server, of a master that Sentinels name, or of a cluster. A client has one connection to each server, for any
 * number of locks and waits, and one daemon thread.
 *
 * <p>Any number of threads may use it: keep one client for the process.
 */
public final class Client implements AutoCloseable {
    static final String VERSION = "0.1.0";

    /** How many tasks run before the client reads its sockets and looks at its timer. */
    private static final int TASKS_PER_TURN = 256;
    /** In nanoseconds, for the servers to read what a closed client has sent. */
    private static final long LEAVING_TIME = 1_000_000_000;
    /** In nanoseconds, before the next attempt to end what somebody waits for. */
    private static final long OUT_OF_MEMORY_PAUSE = 10_000_000;
    private static final long FENCE_MAX = (1L << 53) - 1;
    private static final System.Logger LOG = System.getLogger("rlock");
    private static final Format.Mode EXCLUSIVE = new Format.Mode(Format.ACCESS_EXCLUSIVE, 1, 0);
    private static final Format.Mode SHARED = new Format.Mode(Format.ACCESS_SHARED, 1, 0);
    private static final AtomicInteger THREADS = new AtomicInteger();

    private final SSLContext tls;
    private final Consumer<Occurrence> listener;
    private final Selector selector;
    private final Thread thread;
    private final Queue<Runnable> tasks = new ConcurrentLinkedQueue<>();
    /**
     * Its monitor belongs to the thread that runs tasks. It is not the client's own: a user who had that one, and waited for the
     * client's thread, would wait for ever.
     */
    private final Object running = new Object();
    /** The task that has failed. It is the next one: after the end, a task only completes what its caller waits for. */
    private Runnable failed;
    private final AtomicBoolean isAwake = new AtomicBoolean();
    private final AtomicLong last = new AtomicLong();
    /** One number for all clients, so that each activity is another owner in every client. */
    private static final AtomicLong ACTIVITIES = new AtomicLong();
    private final AtomicBoolean isClosing = new AtomicBoolean();
    private final CompletableFuture<Void> closed = new CompletableFuture<>();
    private volatile boolean isEnded;

    // Only the client's thread uses the fields below. After the end, other threads run tasks too: these use none.
    private final Engine engine;
    private final Map<Long, Connection> connections = new HashMap<>();
    private final Set<Connection> writing = new HashSet<>();
    /** The connections of a closed client. */
    private final List<Connection> leaving = new ArrayList<>();
    private final Map<Long, Call> calls = new HashMap<>();
    private final Map<Long, Hold> holds = new HashMap<>();
    private long due = Engine.NONE;

    /** The activity of each thread. A thread refers to nothing else of a client, so it keeps no closed one. */
    private final ThreadLocal<Activity> activity = ThreadLocal.withInitial(this::activity);
    /** The holds of each thread that lives, by its activity. */
    private final Map<Activity, Map<List<Object>, ArrayDeque<Hold>>> owned = Collections.synchronizedMap(new WeakHashMap<>());

    /** A call that somebody waits for. */
    private static final class Call {
        final CompletableFuture<Action> end = new CompletableFuture<>();
        /** The hold of a lock call or of an upgrade. */
        final Hold hold;
        /** Takes each change of an observer. */
        final Consumer<Action> changes;

        Call(Hold hold, Consumer<Action> changes) {
            this.hold = hold;
            this.changes = changes;
        }
    }

    /** The settings may be those of a quorum: its engine takes the same events. */
    Client(Settings<?> settings) {
        tls = settings.tls;
        listener = settings.listener;
        engine = new Engine(settings);
        try {
            selector = Selector.open();
        } catch (IOException error) {
            engine.close();
            throw new UncheckedIOException(error);
        }
        thread = daemon("client", this::run);
        try {
            thread.start();
        } catch (OutOfMemoryError noThread) {
            free();
            throw noThread;
        }
    }

    /** A client with default settings. See {@link #builder}. */
    public static Client of(String url) {
        return builder(url).build();
    }

    /**
     * Builds a client, which connects at its first call. The URL begins with {@code redis://}, {@code rediss://}, {@code
     * redis+sentinel://}, {@code rediss+sentinel://}, {@code redis+cluster://} or {@code rediss+cluster://}.
     */
    public static Builder builder(String url) {
        return new Builder(url);
    }

    /** The settings of a client. */
    public static final class Builder extends Settings<Builder> {
        private Builder(String url) {
            super(List.of(Objects.requireNonNull(url, "url")), Format.TOGETHER_SINGLE);
        }

        /**
         * Builds it.
         *
         * @throws IllegalArgumentException if the URL or an option is invalid
         * @throws IllegalStateException if {@code rlock.engine} asks for the native engine, which cannot be loaded
         */
        public Client build() {
            return new Client(this);
        }
    }

    /** The lock of this name. */
    public RLock getLock(String name) {
        return new RLock(this, List.of(name), EXCLUSIVE, Terms.DEFAULT);
    }

    /** A lock of 1 to 1024 keys: all of them or none. */
    public RLock getMultiLock(String... names) {
        return new RLock(this, List.of(names), EXCLUSIVE, Terms.DEFAULT);
    }

    /** The lock of this name for readers, who share it. A writer uses {@link #getLock}. */
    public RLock getReadLock(String name) {
        return new RLock(this, List.of(name), SHARED, Terms.DEFAULT);
    }

    /**
     * {@code permits} of a semaphore that has {@code limit} permits, 1 to 1,000,000. A thread that holds some and locks again gets
     * no more: use {@link RLock#acquire} or another activity for these.
     */
    public RLock getSemaphore(String name, int limit, int permits) {
        // The engine checks the rest, but knows no numbers below zero.
        if (limit < 0 || permits < 0) {
            throw new IllegalArgumentException("permits is " + Math.min(limit, permits) + ", it must be from 1 to 1000000");
        }
        return new RLock(this, List.of(name), new Format.Mode(Format.ACCESS_PERMITS, permits, limit), Terms.DEFAULT);
    }

    /** The election of this name, which one client at a time wins. Nothing is sent before its first use. */
    public Election election(String name) {
        return new Election(this, name, getLock(name));
    }

    /** Connects now, and throws if that fails. Without it, the first call connects. */
    public void connect() {
        join(() -> call(null, Format::connect));
    }

    /**
     * An owner for sequential work: its calls re-enter its locks, with the terms and the permits of the first call, and the server
     * detects deadlocks between activities.
     */
    public static final class Activity {
        final long number;

        private Activity(long number) {
            this.number = number;
        }
    }

    /** A new activity for a chain of {@code CompletableFuture}s. Each thread has its own. */
    public Activity activity() {
        return new Activity(ACTIVITIES.incrementAndGet());
    }

    /** The fields of {@code RLOCK.INFO} for a lock. */
    @SuppressWarnings("unchecked")
    public Map<String, Object> info(String name) {
        return (Map<String, Object>) ask(name, false, "RLOCK.INFO");
    }

    /** Ends every hold of a lock, and returns their number. */
    public long force(String name) {
        return (long) ask(name, true, "RLOCK.FORCE");
    }

    /**
     * Ends the hold of a lock with this fence, and returns the number of holds ended. With the fence from {@link #info} it
     * never ends a later hold.
     *
     * @throws IllegalArgumentException unless the fence is from 1 to 9007199254740991
     */
    public long force(String name, long fence) {
        if (fence < 1 || fence > FENCE_MAX) {
            throw new IllegalArgumentException("fence is " + fence + ", it must be from 1 to " + FENCE_MAX);
        }
        return (long) ask(name, true, "RLOCK.FORCE", "FENCE", Long.toString(fence));
    }

    private Object ask(String key, boolean changes, String command, String... options) {
        Engine.checkText("name", key);
        var name = key.getBytes(StandardCharsets.UTF_8);
        var words = Stream.concat(Stream.of(command, key), Stream.of(options)).collect(Collectors.toList());
        var end = join(() -> call(null, (event, call) -> Format.question(event, call, name, words, changes, Engine.NONE)));
        var answer = ((List<?>) end.answers).get(0);
        if (answer instanceof RlockException) {
            throw (RlockException) answer;
        }
        return answer;
    }

    /** The counters of this client: grants, waits, losses, lateRenewals, reconnects. */
    public Map<String, Long> metrics() {
        var counts = (List<?>) join(() -> call(null, Format::metrics)).answers;
        var names = new String[] {"grants", "waits", "losses", "lateRenewals", "reconnects"};
        var metrics = new LinkedHashMap<String, Long>();
        for (int i = 0; i < names.length; i++) {
            metrics.put(names[i], (Long) counts.get(i));
        }
        return metrics;
    }

    /** Ends all waits with {@code Closed}, releases all holds, and closes the connections, within 5 s. */
    @Override
    public void close() {
        close(Duration.ofSeconds(5));
    }

    /**
     * The same, within {@code timeout}. A second call waits for the first one, for at most its own {@code timeout}; in the client's
     * thread it returns at once. An interrupt does not shorten it; the thread stays interrupted. With zero, it sends the
     * releases and does not wait for their answers. What it has not sent when the time is over, the client's thread sends within
     * a further second, unless the process ends before.
     */
    public void close(Duration timeout) {
        var millis = Engine.millis("timeout", Objects.requireNonNull(timeout, "timeout"));
        if (isClosing.get() && Thread.currentThread() == thread) {
            return;
        }
        refuseToBlock();
        if (isClosing.getAndSet(true)) {
            join(closed.copy().completeOnTimeout(null, millis, TimeUnit.MILLISECONDS));
            return;
        }
        try {
            releaseAll(millis);
        } finally {
            closed.complete(null);
        }
    }

    private void releaseAll(long millis) {
        post(() -> handle(Format.leaveAll(new Writer())));
        var flushed = call(null, null, true, Format::flush).completeOnTimeout(null, millis, TimeUnit.MILLISECONDS);
        try {
            join(flushed);
        } catch (RuntimeException notReleased) {
            // The other holds end with their leases.
        }
        var ended = new CompletableFuture<Void>();
        post(() -> {
            end();
            ended.complete(null);
        });
        // A callback may block the client's thread for good: System.exit does, until the hooks that close clients have ended.
        join(ended.completeOnTimeout(null, 1, TimeUnit.SECONDS));
    }

    private void end() {
        if (isEnded) {
            return;
        }
        // The engine closes its connections now, but the servers have not read everything yet.
        leaving.addAll(connections.values());
        handle(Format.closed(new Writer()));
        // The releases may not have been written yet.
        flush();
        isEnded = true;
        leaving.forEach(Connection::leave);
        flush();
        calls.values().forEach(call -> call.end.completeExceptionally(RlockException.closed()));
        holds.values().forEach(hold -> hold.lost(null));
    }

    SSLContext tls() {
        try {
            return tls != null ? tls : SSLContext.getDefault();
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException(error);
        }
    }

    Selector selector() {
        return selector;
    }

    static Thread daemon(String what, Runnable work) {
        var thread = new Thread(work, "rlock-" + what + "-" + THREADS.incrementAndGet());
        thread.setDaemon(true);
        return thread;
    }

    Activity threadActivity() {
        return activity.get();
    }

    /** The holds of this thread, by the mode and the list of keys. */
    Map<List<Object>, ArrayDeque<Hold>> owned() {
        return owned.computeIfAbsent(activity.get(), any -> new HashMap<>());
    }

    /** Runs a task in the client's thread. */
    void post(Runnable task) {
        tasks.add(task);
        if (isEnded) {
            doLastTasks();
        } else if (!isAwake.getAndSet(true)) {
            selector.wakeup();
        }
    }

    /** After the end, as soon as there is memory for them. */
    private void doLastTasks() {
        while (true) {
            try {
                doTasks(Integer.MAX_VALUE);
                return;
            } catch (OutOfMemoryError again) {
                LockSupport.parkNanos(OUT_OF_MEMORY_PAUSE);
            }
        }
    }

    private void doTasks(int most) {
        synchronized (running) {
            for (int left = most; left > 0; left--) {
                var task = failed != null ? failed : tasks.poll();
                failed = null;
                if (task == null) {
                    return;
                }
                try {
                    task.run();
                } catch (RuntimeException | Error error) {
                    failed = task;
                    throw error;
                }
            }
        }
    }

    private void run() {
        // Without memory its class could not be loaded.
        LockSupport.parkNanos(1);
        Throwable failure = null;
        while (!isEnded) {
            try {
                turn();
            } catch (IOException | RuntimeException | Error error) {
                isEnded = true;
                failure = error;
            }
        }
        while (failure != null && !areWaitsEnded(failure)) {
            LockSupport.parkNanos(OUT_OF_MEMORY_PAUSE);
        }
        doLastTasks();
        if (failure != null) {
            log(System.Logger.Level.ERROR, "the client has failed and is closed", failure);
        }
        try {
            leave();
        } catch (IOException | RuntimeException | Error error) {
            log(System.Logger.Level.DEBUG, "closing", error);
        }
        free();
    }

    /**
     * Waits until the servers have read everything, which they show by closing the connections. A server whose answer cannot be
     * sent, because the socket is closed here, drops the requests that it has not read yet.
     */
    private void leave() throws IOException {
        var end = System.nanoTime() + LEAVING_TIME;
        try {
            for (long left = LEAVING_TIME; left > 0 && !leaving.isEmpty(); left = end - System.nanoTime()) {
                select(left);
                flush();
                leaving.removeIf(Connection::isClosed);
            }
        } finally {
            for (var connection : leaving) {
                connection.close();
            }
        }
    }

    /** A user may keep a closed client, but not its buffers. */
    private void free() {
        connections.clear();
        writing.clear();
        leaving.clear();
        calls.clear();
        holds.clear();
        try {
            engine.close();
            selector.close();
        } catch (IOException | Error error) {
            log(System.Logger.Level.DEBUG, "closing", error);
        }
    }

    /** Waits for input, a task or the deadline, and does what is due. */
    private void turn() throws IOException {
        isAwake.set(false);
        var pause = due == Engine.NONE ? Long.MAX_VALUE : due - engine.now();
        select(tasks.isEmpty() ? pause : 0);
        doTasks(TASKS_PER_TURN);
        if (due != Engine.NONE && due <= engine.now()) {
            handle(Format.tick(new Writer()));
        }
        flush();
    }

    /** Waits for input for at most this time, in nanoseconds, and reads it. */
    private void select(long pause) throws IOException {
        if (pause <= 0) {
            selector.selectNow();
        } else {
            selector.select(Math.min(pause / 1_000_000 + 1, 3_600_000));
        }
        // A stage of a future may have interrupted this thread.
        Thread.interrupted();
        isAwake.set(true);
        for (var key : selector.selectedKeys()) {
            ((Connection) key.attachment()).isReady();
        }
        selector.selectedKeys().clear();
    }

    private void flush() {
        while (!writing.isEmpty()) {
            var these = List.copyOf(writing);
            writing.clear();
            these.forEach(Connection::flush);
        }
    }

    /** Ends all calls and holds of a client that has failed. False if that fails too, for example because there is no memory. */
    private boolean areWaitsEnded(Throwable failure) {
        try {
            for (var call : calls.values()) {
                call.end.completeExceptionally(failure);
            }
            for (var hold : holds.values()) {
                hold.lost(why(Format.ENDING_LEASE_ENDED));
            }
            for (var connection : connections.values()) {
                connection.close();
            }
            return true;
        } catch (RuntimeException | Error again) {
            return false;
        }
    }

    /** Completes a future in a stage of another one, which would hide that there is no memory for it. */
    static void fail(CompletableFuture<?> end, Throwable why) {
        while (true) {
            try {
                end.completeExceptionally(why);
                return;
            } catch (OutOfMemoryError again) {
                LockSupport.parkNanos(OUT_OF_MEMORY_PAUSE);
            }
        }
    }

    /** What a handler of the log throws changes nothing else. */
    private static void log(System.Logger.Level level, String text, Throwable thrown) {
        try {
            LOG.log(level, text, thrown);
        } catch (RuntimeException | Error unwritten) {
            // There is no other place to report it.
        }
    }

    /** Writes the event of a call: a method of {@link Format}. */
    interface Event {
        Writer write(Writer to, long call);
    }

    /** Begins a call. Cancelling the returned future abandons it. */
    CompletableFuture<Action> call(Hold hold, Event event) {
        return call(hold, null, false, event);
    }

    CompletableFuture<Action> call(Hold hold, Consumer<Action> changes, boolean isOfClose, Event of) {
        if (isClosing.get() && !isOfClose) {
            return CompletableFuture.failedFuture(RlockException.closed());
        }
        var call = new Call(hold, changes);
        var number = last.incrementAndGet();
        var event = of.write(new Writer(), number);
        post(() -> {
            if (isEnded) {
                call.end.completeExceptionally(RlockException.closed());
            } else {
                calls.put(number, call);
                handle(event);
            }
        });
        call.end.whenComplete((action, error) -> {
            if (call.end.isCancelled()) {
                post(() -> {
                    if (!isEnded && calls.remove(number) != null) {
                        handle(Format.abandon(new Writer(), number));
                    }
                });
            }
        });
        return call.end;
    }

    /** Passes an event of a connection to the engine, unless the engine has closed the connection. */
    void notify(Connection connection, Writer event, boolean isLast) {
        if (connections.get(connection.number()) != connection || isEnded) {
            return;
        }
        if (isLast) {
            connections.remove(connection.number());
        }
        handle(event);
    }

    /** Lets a connection write its output after the tasks of this turn. */
    void writes(Connection connection) {
        writing.add(connection);
    }

    /** Passes an event to the engine, and carries out the actions. */
    private void handle(Writer event) {
        if (isEnded) {
            return;
        }
        var reports = new ArrayList<Runnable>();
        step(event, reports);
        reports.forEach(Runnable::run);
    }

    private void step(Writer event, List<Runnable> reports) {
        var output = engine.handle(event);
        due = output.u64();
        var actions = new ArrayList<Action>();
        while (!output.isAtEnd()) {
            var it = Action.read(output);
            switch (it.kind) {
                case Action.CONNECT:
                    connections.put(it.connection, new Connection(this, it));
                    break;
                case Action.WRITE:
                    if (connections.containsKey(it.connection)) {
                        connections.get(it.connection).write(it.bytes);
                    }
                    break;
                case Action.CLOSE:
                    var closed = connections.remove(it.connection);
                    if (closed != null && !leaving.contains(closed)) {
                        closed.close();
                    }
                    break;
                default:
                    actions.add(it);
            }
        }
        actions.forEach(it -> report(it, reports));
    }

    private void report(Action it, List<Runnable> reports) {
        switch (it.kind) {
            case Action.OVER:
                var hold = holds.get(it.guard);
                if (hold != null) {
                    reports.add(() -> hold.lost(it.why == Format.ENDING_RELEASED ? null : why(it.why)));
                }
                return;
            case Action.NOTE:
                reports.add(() -> log(level(it.level), it.text, null));
                return;
            case Action.OCCURRED:
                occurred(it, reports);
                return;
            default:
        }
        var call = calls.get(it.call);
        if (it.kind == Action.LEADER && call != null && call.changes != null) {
            reports.add(() -> call.changes.accept(it));
            return;
        }
        if (it.kind == Action.GRANTED) {
            if (call == null) {
                step(Format.untaken(new Writer(), it.guard), reports);
                return;
            }
            call.hold.granted(it);
            holds.put(it.guard, call.hold);
        }
        if (call != null) {
            reports.add(() -> complete(call, it));
        }
    }

    private void complete(Call call, Action it) {
        if (it.kind == Action.FAILED) {
            call.end.completeExceptionally(RlockException.of(it.code, it.text, it.isTransient));
        } else if (!call.end.complete(it) && it.kind == Action.GRANTED) {
            // It was cancelled at the same moment.
            untaken(it.guard);
        }
        // Not before: if the client fails in between, it completes the call.
        calls.remove(it.call);
    }

    /**
     * Returns a grant whose caller no longer exists, before the server receives the next request of that caller, which would
     * otherwise seem to wait while it holds the lock. A thread that cancels a call may run its stages, even if it has just ended.
     */
    void untaken(long guard) {
        Runnable task = () -> {
            if (!isEnded) {
                holds.remove(guard);
                handle(Format.untaken(new Writer(), guard));
            }
        };
        if (Thread.currentThread() == thread) {
            task.run();
        } else {
            post(task);
        }
    }

    private void occurred(Action it, List<Runnable> reports) {
        var occurrence = new Occurrence(it);
        if (listener != null) {
            reports.add(() -> tell("listener", listener, occurrence));
        }
        var hold = holds.get(it.guard);
        if (hold != null && hold.onRisk != null && it.what.equals("at_risk")) {
            reports.add(() -> tell("onRisk", hold.onRisk, occurrence.duration()));
        }
    }

    /** What the user's code throws changes nothing else. */
    private static <T> void tell(String name, Consumer<T> consumer, T it) {
        try {
            consumer.accept(it);
        } catch (Throwable thrown) {
            log(System.Logger.Level.ERROR, "the function of " + name + " has thrown", thrown);
        }
    }

    long remaining(long guard) {
        if (Thread.currentThread() == thread) {
            return isEnded ? 0 : engine.remaining(guard);
        }
        var left = new CompletableFuture<Long>();
        post(() -> left.complete(isEnded ? 0 : engine.remaining(guard)));
        return join(left);
    }

    void forget(long guard) {
        post(() -> {
            if (!isEnded) {
                holds.remove(guard);
            }
        });
    }

    static String why(int ending) {
        switch (ending) {
            case Format.ENDING_LEASE_ENDED:
                return "its lease ended";
            case Format.ENDING_ENDED_BY_SERVER:
                return "the server ended it";
            default:
                return "it was released";
        }
    }

    private static System.Logger.Level level(int level) {
        switch (level) {
            case Format.LEVEL_DEBUG:
                return System.Logger.Level.TRACE;
            case Format.LEVEL_INFORMATION:
                return System.Logger.Level.DEBUG;
            default:
                return System.Logger.Level.WARNING;
        }
    }

    /** The client's thread cannot wait for itself. */
    private void refuseToBlock() {
        if (Thread.currentThread() == thread) {
            throw new IllegalStateException("this would block the client: use the methods with Async on futures of locks");
        }
    }

    /** Abandons a call that has begun and would block. */
    private void refuseToBlock(CompletableFuture<?> end) {
        if (!end.isDone() && Thread.currentThread() == thread) {
            end.cancel(false);
            refuseToBlock();
        }
    }

    /** Begins a call and waits for its end. An interrupt cancels the call. */
    <T> T await(Supplier<CompletableFuture<T>> call) throws InterruptedException {
        refuseToBlock();
        return await(call.get());
    }

    /** Waits for the end of a call. An interrupt cancels the call. */
    <T> T await(CompletableFuture<T> end) throws InterruptedException {
        refuseToBlock(end);
        try {
            return end.get();
        } catch (InterruptedException interrupted) {
            if (end.cancel(false)) {
                throw interrupted;
            }
            // It has just ended: a grant must not get lost.
            Thread.currentThread().interrupt();
            return await(end);
        } catch (ExecutionException failed) {
            throw thrown(failed.getCause());
        }
    }

    /** Begins a call and waits for its end. An interrupt does not end the wait. */
    <T> T join(Supplier<CompletableFuture<T>> call) {
        refuseToBlock();
        return join(call.get());
    }

    /** Waits for the end of a call. An interrupt does not end the wait. */
    <T> T join(CompletableFuture<T> end) {
        refuseToBlock(end);
        boolean isInterrupted = false;
        try {
            while (true) {
                try {
                    return end.get();
                } catch (InterruptedException interrupted) {
                    isInterrupted = true;
                } catch (ExecutionException failed) {
                    throw thrown(failed.getCause());
                }
            }
        } finally {
            if (isInterrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    /** The same exception with the stack of the thread that waits. */
    static RuntimeException thrown(Throwable cause) {
        if (cause instanceof RlockException) {
            var error = (RlockException) cause;
            return new RlockException(error.code(), error.getMessage(), error.isTransient());
        }
        if (cause instanceof LostException) {
            return new LostException(cause.getMessage());
        }
        if (cause instanceof IllegalArgumentException) {
            return new IllegalArgumentException(cause.getMessage());
        }
        return new IllegalStateException("the client has failed", cause);
    }
}
