package rlock;

/** An error. Its code is the same in every language. */
public class RlockException extends RuntimeException {
    private static final long serialVersionUID = 1;

    private final String code;
    private final boolean isTransient;

    RlockException(String code, String message, boolean isTransient) {
        super(message);
        this.code = code;
        this.isTransient = isTransient;
    }

    /**
     * {@code Connect}, {@code Member}, {@code ModuleMissing}, {@code Unavailable}, {@code NotReplicated}, {@code QueueFull}, {@code Cancelled},
     * {@code Deadlock}, {@code HeldOtherwise}, {@code Denied}, {@code NotALock}, {@code OutOfMemory}, {@code Refused},
     * {@code NotReleased}, {@code Protocol}, {@code Closed}, {@code NotAcquired}. An invalid argument is an {@link IllegalArgumentException}, and a
     * lost lock a {@link LostException}.
     */
    public String code() {
        return code;
    }

    /** Whether a retry may help. */
    public boolean isTransient() {
        return isTransient;
    }

    /** The exception of this code. */
    static RuntimeException of(String code, String message, boolean isTransient) {
        switch (code) {
            case "OutOfRange":
                return new IllegalArgumentException(message);
            case "Lost":
                return new LostException(message);
            default:
                return new RlockException(code, message, isTransient);
        }
    }

    static RlockException closed() {
        return new RlockException("Closed", "the client has been closed", false);
    }
}
