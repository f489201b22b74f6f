package contestant;

/** Ours: the helper for jedis. */
final class RlockPeer implements Peer {
    @Override
    public String name() {
        return "rlock-java";
    }

    @Override
    public String title() {
        return "rlock, clients/java";
    }

    @Override
    public String waits() {
        return "server queue";
    }

    @Override
    public String settings() {
        return "";
    }

    @Override
    public String library() {
        return "";
    }

    @Override
    public Callers open(Workload workload) {
        throw new IllegalArgumentException("not yet");
    }
}
