package rlock;

/** The lock was no longer held: another owner may have held it meanwhile. */
public class LostException extends IllegalMonitorStateException {
    private static final long serialVersionUID = 1;

    LostException(String message) {
        super(message);
    }
}
