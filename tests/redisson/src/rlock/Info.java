package rlock;

import java.util.List;
import java.util.Map;

/** What {@code RLOCK.INFO} says. */
record Info(String mode, Long fence, List<Holder> holders, long queued) {
    /** The fence is null if Redisson took the hold. */
    record Holder(String owner, long count, long leaseLeft, Long fence) {
        static Holder of(Map<String, Object> map) {
            return new Holder(
                    (String) map.get("owner"),
                    (Long) map.get("count"),
                    (Long) map.get("lease-left-ms"),
                    (Long) map.get("fence"));
        }
    }

    static Info of(Map<String, Object> map) {
        var holders = (List<?>) map.get("holders");
        return new Info(
                (String) map.get("mode"),
                (Long) map.get("fence"),
                holders.stream().map(each -> Holder.of(Client.map(each))).toList(),
                (Long) map.get("queued"));
    }

    boolean isFree() {
        return mode.equals("free");
    }

    /** The only holder. */
    Holder holder() {
        if (holders.size() != 1) {
            throw new AssertionError("not one holder: " + this);
        }
        return holders.get(0);
    }
}
