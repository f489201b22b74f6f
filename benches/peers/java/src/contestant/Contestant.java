package contestant;

import com.google.gson.Gson;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * Runs one lock library of Java under one workload, for `make compare`.
 * Events and acquisitions go to standard output, one JSON value a line;
 * everything else goes to standard error.
 */
public final class Contestant {
    private static final List<Peer> PEERS = List.of(
            RedissonPeer.now(), RedissonPeer.nowFair(), RedissonPeer.old(), RedissonPeer.oldFair(),
            new RlockPeer(), new SetNxPeer());

    private Contestant() {}

    public static void main(String[] arguments) throws Exception {
        if (List.of(arguments).contains("--list")) {
            Lines.print(new Gson().toJson(list()));
            return;
        }
        try {
            run(Workload.parse(arguments));
            System.exit(0); // Some libraries leave threads behind that are no daemons.
        } catch (IllegalArgumentException wrong) {
            System.err.println("contestant: " + wrong.getMessage());
            System.exit(1);
        }
    }

    private static void run(Workload workload) throws Exception {
        Peer peer = find(workload.peer());
        Modes modes = new Modes(workload, peer.open(workload));
        switch (workload.mode()) {
            case "loop", "start" -> modes.loop();
            case "crowd" -> modes.crowd();
            case "hold" -> modes.hold();
            default -> modes.awaitGrant();
        }
    }

    private static Peer find(String name) {
        for (Peer peer : PEERS) {
            if (peer.name().equals(name)) {
                return peer;
            }
        }
        String names = PEERS.stream().map(Peer::name).collect(Collectors.joining(", "));
        throw new IllegalArgumentException("--peer is " + name + ": it must be one of " + names);
    }

    private static List<Map<String, String>> list() throws IOException {
        List<Map<String, String>> all = new ArrayList<>();
        for (Peer peer : PEERS) {
            all.add(Map.of(
                    "name", peer.name(), "title", peer.title(), "version", version(peer), "language", "Java",
                    "waits", peer.waits(), "settings", peer.settings()));
        }
        return all;
    }

    /** The version in the name of the library's file; the project's own for ours. */
    private static String version(Peer peer) throws IOException {
        if (peer.library().isEmpty()) {
            return System.getProperty("contestant.version");
        }
        String beginning = peer.library() + "-";
        Path libraries = Path.of(System.getProperty("contestant.home"), peer.libraries());
        try (Stream<Path> files = Files.list(libraries)) {
            return files.map(file -> file.getFileName().toString())
                    .filter(name -> name.startsWith(beginning))
                    .map(name -> name.substring(beginning.length(), name.length() - ".jar".length()))
                    .findFirst().orElse("unknown");
        }
    }
}
