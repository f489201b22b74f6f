package contestant;

import rlock.Client;
import rlock.Hold;
import rlock.Terms;

/** Ours. */
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
        return "one client for all; lease from the workload (30 s), renewed";
    }

    @Override
    public String library() {
        return "";
    }

    @Override
    public Callers open(Workload workload) {
        Client client = Client.of(workload.url());
        return () -> new RlockCaller(client, Terms.standard().lease(workload.lease()));
    }

    private static final class RlockCaller implements Caller {
        private final Client client;
        private final Terms terms;
        private Hold hold;

        RlockCaller(Client client, Terms terms) {
            this.client = client;
            this.terms = terms;
        }

        @Override
        public void acquire(String key) throws Exception {
            hold = client.getLock(key).with(terms).acquire();
        }

        @Override
        public void release() {
            hold.close();
        }
    }
}
