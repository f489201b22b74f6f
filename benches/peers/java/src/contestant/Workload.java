package contestant;

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** What to do, from the command line. `rounds` of 0 means no limit. */
record Workload(
        String peer, String url, String mode, int callers, boolean ownKeys, String key, double seconds, int rounds,
        Duration hold, Duration settle, Duration lease) {

    static Workload parse(String[] arguments) {
        Map<String, String> options = new HashMap<>(Map.of(
                "--peer", "", "--url", "", "--mode", "loop", "--callers", "1", "--keys", "shared", "--key", "compare",
                "--seconds", "1", "--rounds", "0"));
        options.putAll(Map.of("--hold-us", "0", "--settle-ms", "200", "--lease-ms", "30000"));
        for (int i = 0; i < arguments.length; i += 2) {
            if (!options.containsKey(arguments[i]) || i + 1 == arguments.length) {
                throw new IllegalArgumentException(arguments[i] + " is no option, or has no value");
            }
            options.put(arguments[i], arguments[i + 1]);
        }
        oneOf(options, "--mode", List.of("loop", "start", "crowd", "hold", "wait"));
        oneOf(options, "--keys", List.of("shared", "own"));
        return new Workload(
                options.get("--peer"), options.get("--url"), options.get("--mode"),
                (int) number(options, "--callers", 1), options.get("--keys").equals("own"), options.get("--key"),
                seconds(options.get("--seconds")), (int) number(options, "--rounds", 0),
                Duration.ofNanos(number(options, "--hold-us", 0) * 1_000),
                Duration.ofMillis(number(options, "--settle-ms", 0)),
                Duration.ofMillis(number(options, "--lease-ms", 1)));
    }

    /** How many callers the mode needs: a crowd has one more, who holds. */
    int allCallers() {
        return switch (mode) {
            case "loop", "start" -> callers;
            case "crowd" -> callers + 1;
            default -> 1;
        };
    }

    /** The key of a caller in a loop. */
    String keyOf(int caller) {
        return ownKeys ? key + ":" + caller : key;
    }

    private static void oneOf(Map<String, String> options, String name, List<String> values) {
        if (!values.contains(options.get(name))) {
            throw new IllegalArgumentException(name + " is " + options.get(name) + ": it must be one of " + values);
        }
    }

    private static long number(Map<String, String> options, String name, long least) {
        String value = options.get(name);
        if (!value.matches("[0-9]{1,9}") || Long.parseLong(value) < least) {
            throw new IllegalArgumentException(
                    name + " is " + value + ": it must be a number from " + least + " to 999999999");
        }
        return Long.parseLong(value);
    }

    private static double seconds(String value) {
        if (!value.matches("[0-9]{1,5}([.][0-9]+)?")) {
            throw new IllegalArgumentException("--seconds is " + value + ": it must be a number from 0 to 99999");
        }
        return Double.parseDouble(value);
    }
}
