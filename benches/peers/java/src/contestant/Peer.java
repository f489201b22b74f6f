package contestant;

/** A lock library, and how it is used here. */
interface Peer {
    String name();

    String title();

    String waits();

    /** What differs from the library's defaults, and why. */
    String settings();

    /** The first part of the name of the library's file; empty for ours. */
    String library();

    /** The directory of the libraries that it runs with. */
    default String libraries() {
        return "lib";
    }

    /** Connects once for the whole program. */
    Callers open(Workload workload) throws Exception;

    /** Makes callers. */
    interface Callers {
        Caller caller() throws Exception;
    }

    /**
     * One user of a lock, who acquires and releases one lock at a time. Both
     * are called by the same thread.
     */
    interface Caller {
        void acquire(String key) throws Exception;

        void release() throws Exception;
    }
}
