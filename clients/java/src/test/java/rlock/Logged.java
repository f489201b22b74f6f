package rlock;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.function.Predicate;
import java.util.logging.Handler;
import java.util.logging.LogRecord;
import java.util.logging.Logger;

/** What clients log until this is closed, if it is wanted. */
final class Logged extends Handler implements AutoCloseable {
    final List<LogRecord> lines = Collections.synchronizedList(new ArrayList<>());
    private final Logger logger = Logger.getLogger("rlock");
    private final Predicate<LogRecord> isWanted;

    Logged(Predicate<LogRecord> isWanted) {
        this.isWanted = isWanted;
        logger.addHandler(this);
    }

    @Override
    public void publish(LogRecord line) {
        if (isWanted.test(line)) {
            lines.add(line);
        }
    }

    @Override
    public void flush() {}

    @Override
    public void close() {
        logger.removeHandler(this);
    }
}
