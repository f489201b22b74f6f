package rlock;

import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import javax.management.JMException;
import javax.management.ObjectName;

/**
 * Keeps HotSpot from inlining unsigned comparisons into the engine. Its C2 compiler miscompiles them once the engine is hot
 * (dylibso/chicory#843), which corrupts the engine's memory.
 */
final class Inlining {
    /** With it, Java inlines no comparison at all. */
    static final String OPTION = "-XX:CompileCommand=dontinline,com.dylibso.chicory.runtime.OpcodeImpl::I*";

    private static final System.Logger LOG = System.getLogger("rlock");
    private static final String ENGINE = "rlock/CompiledMachine*.*";
    private static final String METHODS = Stream.of("I32_", "I64_")
            .flatMap(type -> Stream.of("LT_U", "LE_U", "GT_U", "GE_U").map(type::concat))
            .map(method -> "-com/dylibso/chicory/runtime/OpcodeImpl." + method).collect(Collectors.joining(", "));

    private Inlining() {}

    /**
     * Adds a compiler directive, which applies only to the classes of the engine, unless it is there already.
     *
     * @throws IllegalStateException if C2 may still inline the comparisons
     */
    static synchronized void require() {
        // No other JVM has C2.
        if (!System.getProperty("java.vm.name").endsWith("Server VM")) {
            return;
        }
        try {
            if (!isRestricted()) {
                add();
            }
        } catch (Exception | LinkageError error) { // An image may lack the classes.
            throw new IllegalStateException("HotSpot's compiler C2 would corrupt this client, and the directive that prevents it "
                    + "cannot be set. Add the modules jdk.management and jdk.jfr to the Java image, and let Java write to "
                    + "java.io.tmpdir. Or add the module java.management, and start Java with " + OPTION, error);
        }
    }

    private static boolean isRestricted() throws JMException {
        if (ManagementFactory.getRuntimeMXBean().getInputArguments().contains(OPTION)) {
            return true;
        }
        var directives = command("compilerDirectivesPrint");
        return directives.contains("matching: " + ENGINE) && directives.contains("inline: " + METHODS);
    }

    private static void add() throws IOException, JMException {
        var file = Files.createTempFile("rlock", ".json");
        try {
            var inline = METHODS.replace(", ", "\", \"");
            Files.writeString(file, "[{match: \"" + ENGINE + "\", inline: [\"" + inline + "\"]}]");
            var answer = command("compilerDirectivesAdd", file.toString());
            if (!answer.contains("directives added")) {
                throw new IOException(answer.strip());
            }
            LOG.log(System.Logger.Level.DEBUG, () -> "compiler directives: " + answer);
        } finally {
            Files.delete(file);
        }
    }

    /** HotSpot's answer to a command. */
    private static String command(String name, String... arguments) throws JMException {
        return (String) ManagementFactory.getPlatformMBeanServer().invoke(new ObjectName("com.sun.management:type=DiagnosticCommand"),
                name, new Object[] {arguments}, new String[] {String[].class.getName()});
    }
}
