package rlock;

import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** One thread of a program that uses Redisson. To Redisson a thread is an owner, which releases what it has taken. */
final class Actor implements AutoCloseable {
    private final ExecutorService thread = Executors.newSingleThreadExecutor(run -> {
        var thread = new Thread(run);
        thread.setDaemon(true);
        return thread;
    });

    interface Action {
        void run() throws Exception;
    }

    <T> T get(Callable<T> question) throws Exception {
        return result(thread.submit(question));
    }

    boolean is(Callable<Boolean> question) throws Exception {
        return get(question);
    }

    void run(Action action) throws Exception {
        result(start(action));
    }

    /** The future gives the time when the action was through, as {@code System.nanoTime} has it. */
    Future<Long> start(Action action) {
        return thread.submit(() -> {
            action.run();
            return System.nanoTime();
        });
    }

    long id() throws Exception {
        return get(() -> Thread.currentThread().getId());
    }

    /** What comes of it, within a time that is enough for all but what never comes. */
    static <T> T result(Future<T> future) throws Exception {
        try {
            return future.get(Deadline.LONG.toSeconds(), TimeUnit.SECONDS);
        } catch (ExecutionException failure) {
            if (failure.getCause() instanceof Exception cause) {
                throw cause;
            }
            if (failure.getCause() instanceof Error cause) {
                throw cause;
            }
            throw failure;
        } catch (TimeoutException late) {
            throw new IllegalStateException("it never ended", late);
        }
    }

    @Override
    public void close() {
        thread.shutdownNow();
    }
}
