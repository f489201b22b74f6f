package rlock;

import rlock.Engine.Writer;

/** The functions of the engine: docs/embedding.md. Only the client's thread may call it. An {@link Error} ends the client. */
interface Machine {
    /** The version of its format. */
    long version();

    /** Takes the configuration. Returns an error's text in UTF-8, or {@code null}. */
    byte[] open(Writer configuration);

    /** The output for an event; {@code null} if it is malformed. */
    byte[] handle(Writer event, long now);

    /** For how many nanoseconds a guard stays valid; unsigned. */
    long remaining(long guard, long now);

    /** Frees what it has. Nothing may be called after that. */
    void close();
}
