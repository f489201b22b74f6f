package rlock;

/** What {@link Locks} and {@link Held} throw. Of this class itself: the server could not be reached, the cause says why. */
public class LockException extends RuntimeException {
    private static final long serialVersionUID = 1;

    LockException(String message, Throwable cause) {
        super(message, cause);
    }

    /** The wait is over without a grant, or somebody withdrew the request. */
    public static final class NotAcquired extends LockException {
        private static final long serialVersionUID = 1;

        NotAcquired(String message) {
            super(message, null);
        }
    }

    /** The lock is not held any more. */
    public static final class Lost extends LockException {
        private static final long serialVersionUID = 1;

        Lost(String message) {
            super(message, null);
        }
    }

    /** The server refused. Decide by {@link #word()}, as the sentence may change. */
    public static final class Refused extends LockException {
        private static final long serialVersionUID = 1;
        private final String word;

        Refused(String message, Throwable cause) {
            super(message, cause);
            word = message.startsWith("ERR unknown command") ? "NOMODULE" : message.split(" ", 2)[0];
        }

        /**
         * The first word of the server's error: {@code DEADLOCK}, {@code QUEUEFULL}, {@code WRONGTYPE}, {@code NOPERM},
         * {@code OOM}, {@code ERR} and so on; {@code NOMODULE} where the server has not loaded librlock.so.
         */
        public String word() {
            return word;
        }

        /** Whether asking again may help: servers restart, and change places. */
        boolean passes() {
            return switch (word) {
                case "UNBLOCKED", "TRYAGAIN", "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "MOVED", "ASK" -> true;
                default -> false;
            };
        }
    }
}
