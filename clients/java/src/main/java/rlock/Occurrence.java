package rlock;

import java.time.Duration;
import java.util.Collections;
import java.util.List;

/** Something that has happened to the locks or connections of a client. {@code docs/telemetry.md} lists the kinds and outcomes. */
public final class Occurrence {
    private final String kind;
    private final String outcome;
    private final Duration duration;
    private final List<String> keys;
    private final String text;

    Occurrence(Format.Action it) {
        kind = it.what;
        outcome = it.outcome;
        duration = Duration.ofNanos(it.nanoseconds);
        keys = Collections.unmodifiableList(it.keys);
        text = it.text;
    }

    /** What it is, such as {@code wait} or {@code at_risk}. */
    public String kind() {
        return kind;
    }

    /** How a wait or a hold has ended: {@code granted}, {@code released}, or the code of an error. Otherwise it is empty. */
    public String outcome() {
        return outcome;
    }

    /** How long it took. For {@code at_risk}, it is the time that is left. */
    public Duration duration() {
        return duration;
    }

    /** The keys that it concerns; none for connections. They may be secret. */
    public List<String> keys() {
        return keys;
    }

    /** The address of a server, or its error. */
    public String text() {
        return text;
    }

    /** Everything but the keys. */
    @Override
    public String toString() {
        return "Occurrence[kind=" + kind + ", outcome=" + outcome + ", duration=" + duration + ", text=" + text + "]";
    }
}
