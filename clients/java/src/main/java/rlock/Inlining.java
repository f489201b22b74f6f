package rlock;

import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import javax.management.JMException;
import javax.management.ObjectName;

/**
 * Keeps HotSpot from inlining unsigned comparisons into the engine. Its C2 compiler miscompiles them once the engine is hot
 * (dylibso/chicory#843), which corrupts the engine's memory.
 */
final class Inlining {
    private static final System.Logger LOG = System.getLogger("rlock");
    private static final List<String> COMPARISONS = List.of("LT_U", "LE_U", "GT_U", "GE_U");

    private Inlining() {}

    /** Adds a compiler directive, which applies only to the classes of the engine. Other JVMs than HotSpot have none. */
    static void restrict() {
        try {
            var commands = new ObjectName("com.sun.management:type=DiagnosticCommand");
            var server = ManagementFactory.getPlatformMBeanServer();
            if (!server.isRegistered(commands)) {
                return;
            }
            var file = Files.createTempFile("rlock", ".json");
            try {
                Files.writeString(file, directives());
                var answer = server.invoke(commands, "compilerDirectivesAdd", new Object[] {new String[] {file.toString()}},
                        new String[] {String[].class.getName()});
                LOG.log(System.Logger.Level.DEBUG, () -> "compiler directives: " + answer);
            } finally {
                Files.delete(file);
            }
        } catch (IOException | JMException | RuntimeException error) {
            LOG.log(System.Logger.Level.WARNING, "cannot restrict the inlining of the engine", error);
        }
    }

    private static String directives() {
        var methods = Stream.of("I32_", "I64_").flatMap(type -> COMPARISONS.stream().map(type::concat));
        var inline = methods.map(method -> "\"-com/dylibso/chicory/runtime/OpcodeImpl." + method + "\"");
        return "[{match: \"rlock/CompiledMachine*.*\", inline: [" + inline.collect(Collectors.joining(", ")) + "]}]";
    }
}
