// Generated from crates/rlock-embed/src/messages.rs by `RLOCK_GENERATE=1 cargo test --package rlock-embed --test generated`.
package rlock;

import java.nio.ByteBuffer;
import java.util.List;
import java.util.Map;
import rlock.Engine.Reader;
import rlock.Engine.Writer;

/** The events and actions of docs/embedding.md. */
final class Format {
    static final int VERSION = 3;
    static final int OWNING_NEW = 0;
    static final int OWNING_ACTIVITY = 1;
    static final int OWNING_NAMED = 2;
    static final int ACCESS_EXCLUSIVE = 0;
    static final int ACCESS_SHARED = 1;
    static final int ACCESS_PERMITS = 2;
    static final int FAULT_IO = 0;
    static final int FAULT_TIME = 1;
    static final int FAULT_SETUP = 2;
    static final int FAULT_CERTIFICATE = 3;
    static final int TRANSPORT_TCP = 0;
    static final int TRANSPORT_TLS = 1;
    static final int TRANSPORT_INSECURE = 2;
    static final int TRANSPORT_UNIX = 3;
    static final int ENDING_LEASE_ENDED = 0;
    static final int ENDING_ENDED_BY_SERVER = 1;
    static final int ENDING_RELEASED = 2;
    static final int LEVEL_DEBUG = 0;
    static final int LEVEL_INFORMATION = 1;
    static final int LEVEL_WARNING = 2;
    static final int TOGETHER_SINGLE = 0;
    static final int TOGETHER_QUORUM = 1;
    static final int TOGETHER_ANY_GRACE = 2;

    private Format() {}

    static final class Owner {
        final int owner;
        final long activity;
        final String name;

        Owner(int owner, long activity, String name) {
            this.owner = owner;
            this.activity = activity;
            this.name = name;
        }

        void write(Writer to) {
            to.u8(owner);
            to.u64(activity);
            to.text(name);
        }
    }

    static final class Mode {
        final int mode;
        final int permits;
        final int limit;

        Mode(int mode, int permits, int limit) {
            this.mode = mode;
            this.permits = permits;
            this.limit = limit;
        }

        void write(Writer to) {
            to.u8(mode);
            to.u32(permits);
            to.u32(limit);
        }
    }

    static final class Wanted {
        final Owner owner;
        final List<String> keys;
        final Mode mode;

        Wanted(Owner owner, List<String> keys, Mode mode) {
            this.owner = owner;
            this.keys = keys;
            this.mode = mode;
        }

        void write(Writer to) {
            owner.write(to);
            to.list(keys);
            mode.write(to);
        }
    }

    static final class Terms {
        final long lease;
        final boolean isRenewed;
        final long maxHold;
        final long bound;
        final int replicas;
        final long margin;

        Terms(long lease, boolean isRenewed, long maxHold, long bound, int replicas, long margin) {
            this.lease = lease;
            this.isRenewed = isRenewed;
            this.maxHold = maxHold;
            this.bound = bound;
            this.replicas = replicas;
            this.margin = margin;
        }

        void write(Writer to) {
            to.u64(lease);
            to.flag(isRenewed);
            to.u64(maxHold);
            to.u64(bound);
            to.u16(replicas);
            to.u64(margin);
        }
    }

    static final class Leader {
        final long fence;
        final byte[] value;
        final String owner;
        final long timeLeft;

        Leader(long fence, byte[] value, String owner, long timeLeft) {
            this.fence = fence;
            this.value = value;
            this.owner = owner;
            this.timeLeft = timeLeft;
        }
    }

    static Writer configuration(Writer to, int version, List<String> urls, int together, String name, String library, String libraryVersion, long response, long retry, long replication, boolean isListens, byte[] seed) {
        to.u32(version);
        to.list(urls);
        to.u8(together);
        to.text(name);
        to.text(library);
        to.text(libraryVersion);
        to.u64(response);
        to.u64(retry);
        to.u64(replication);
        to.flag(isListens);
        to.raw(seed);
        return to;
    }

    static Writer connect(Writer to, long call) {
        to.u8(1);
        to.u64(call);
        return to;
    }

    static Writer lock(Writer to, long call, Wanted wanted, long wait, Terms terms) {
        to.u8(2);
        to.u64(call);
        wanted.write(to);
        to.u64(wait);
        terms.write(to);
        return to;
    }

    static Writer release(Writer to, long call, long guard, long least) {
        to.u8(3);
        to.u64(call);
        to.u64(guard);
        to.u64(least);
        return to;
    }

    static Writer upgrade(Writer to, long call, long guard, long wait) {
        to.u8(4);
        to.u64(call);
        to.u64(guard);
        to.u64(wait);
        return to;
    }

    static Writer extend(Writer to, long call, long guard, long lease) {
        to.u8(5);
        to.u64(call);
        to.u64(guard);
        to.u64(lease);
        return to;
    }

    static Writer downgrade(Writer to, long call, long guard) {
        to.u8(6);
        to.u64(call);
        to.u64(guard);
        return to;
    }

    static Writer question(Writer to, long call, byte[] key, List<String> words, boolean isChanges, long limit) {
        to.u8(7);
        to.u64(call);
        to.bytes(key);
        to.list(words);
        to.flag(isChanges);
        to.u64(limit);
        return to;
    }

    static Writer abandon(Writer to, long call) {
        to.u8(8);
        to.u64(call);
        return to;
    }

    static Writer metrics(Writer to, long call) {
        to.u8(9);
        to.u64(call);
        return to;
    }

    static Writer opened(Writer to, long connection) {
        to.u8(10);
        to.u64(connection);
        return to;
    }

    static Writer received(Writer to, long connection, ByteBuffer bytes) {
        to.u8(11);
        to.u64(connection);
        to.data(bytes);
        return to;
    }

    static Writer ended(Writer to, long connection, int failure, String text) {
        to.u8(12);
        to.u64(connection);
        to.u8(failure);
        to.text(text);
        return to;
    }

    static Writer flush(Writer to, long call) {
        to.u8(13);
        to.u64(call);
        return to;
    }

    static Writer leaveAll(Writer to) {
        to.u8(14);
        return to;
    }

    static Writer closed(Writer to) {
        to.u8(15);
        return to;
    }

    static Writer tick(Writer to) {
        to.u8(16);
        return to;
    }

    static Writer leave(Writer to, long guard) {
        to.u8(17);
        to.u64(guard);
        return to;
    }

    static Writer untaken(Writer to, long guard) {
        to.u8(18);
        to.u64(guard);
        return to;
    }

    static Writer campaign(Writer to, long call, Wanted wanted, long wait, Terms terms, byte[] value) {
        to.u8(19);
        to.u64(call);
        wanted.write(to);
        to.u64(wait);
        terms.write(to);
        to.bytes(value);
        return to;
    }

    static Writer proclaim(Writer to, long call, long guard, byte[] value) {
        to.u8(20);
        to.u64(call);
        to.u64(guard);
        to.bytes(value);
        return to;
    }

    static Writer observe(Writer to, long call, byte[] key) {
        to.u8(21);
        to.u64(call);
        to.bytes(key);
        return to;
    }

    static Writer leader(Writer to, long call, byte[] key) {
        to.u8(22);
        to.u64(call);
        to.bytes(key);
        return to;
    }

    static Writer releasePermits(Writer to, long call, long guard, int permits) {
        to.u8(23);
        to.u64(call);
        to.u64(guard);
        to.u32(permits);
        return to;
    }

    /** An action of the engine. */
    static final class Action {
        static final int CONNECT = 1;
        static final int WRITE = 2;
        static final int CLOSE = 3;
        static final int GRANTED = 4;
        static final int REFUSED = 5;
        static final int DONE = 6;
        static final int FAILED = 7;
        static final int ANSWERED = 8;
        static final int OVER = 9;
        static final int NOTE = 10;
        static final int LEADER = 11;
        static final int OCCURRED = 12;

        int kind;
        long connection;
        int how;
        String host;
        int port;
        ByteBuffer bytes;
        long call;
        long guard;
        String owner;
        Map<String, Long> fences;
        String code;
        String text;
        boolean isTransient;
        Object answers;
        int why;
        int level;
        Leader leader;
        boolean isMissed;
        String what;
        String outcome;
        long nanoseconds;
        List<String> keys;

        static Action read(Reader from) {
            var it = new Action();
            it.kind = from.u8();
            switch (it.kind) {
                case CONNECT:
                    it.connection = from.u64();
                    it.how = from.u8();
                    it.host = from.text();
                    it.port = from.u16();
                    break;
                case WRITE:
                    it.connection = from.u64();
                    it.bytes = from.data();
                    break;
                case CLOSE:
                    it.connection = from.u64();
                    break;
                case GRANTED:
                    it.call = from.u64();
                    it.guard = from.u64();
                    it.owner = from.text();
                    it.fences = from.fences();
                    break;
                case REFUSED:
                    it.call = from.u64();
                    break;
                case DONE:
                    it.call = from.u64();
                    break;
                case FAILED:
                    it.call = from.u64();
                    it.code = from.text();
                    it.text = from.text();
                    it.isTransient = from.flag();
                    break;
                case ANSWERED:
                    it.call = from.u64();
                    it.answers = from.value();
                    break;
                case OVER:
                    it.guard = from.u64();
                    it.why = from.u8();
                    break;
                case NOTE:
                    it.level = from.u8();
                    it.text = from.text();
                    break;
                case LEADER:
                    it.call = from.u64();
                    it.leader = Reader.optional(from.flag(), new Leader(from.u64(), from.bytes(), from.text(), from.u64()));
                    it.isMissed = from.flag();
                    break;
                case OCCURRED:
                    it.guard = from.u64();
                    it.what = from.text();
                    it.outcome = from.text();
                    it.nanoseconds = from.u64();
                    it.keys = from.list();
                    it.text = from.text();
                    break;
                default:
                    throw new IllegalStateException("unknown action " + it.kind);
            }
            return it;
        }
    }
}
