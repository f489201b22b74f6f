package rlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.management.ManagementFactory;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import javax.management.ObjectName;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The directive for HotSpot's C2. */
@Timeout(60)
class InliningTest {
    private static final String URL = "redis://127.0.0.1:1";

    /** Opens a client, which does not connect. */
    static final class Program {
        public static void main(String[] arguments) {
            Client.of(URL).close();
            System.out.println("opened");
        }
    }

    /** The output of the program in a JVM with these options. */
    private static String open(String... options) throws Exception {
        var command = new ArrayList<>(List.of(Path.of(System.getProperty("java.home"), "bin", "java").toString()));
        command.addAll(List.of(options));
        command.addAll(List.of("--class-path", System.getProperty("java.class.path"), Program.class.getName()));
        var process = new ProcessBuilder(command).redirectErrorStream(true).start();
        var output = new String(process.getInputStream().readAllBytes());
        assertEquals(output.contains("opened") ? 0 : 1, process.waitFor(), output);
        return output;
    }

    private static String directives(String command) throws Exception {
        return (String) ManagementFactory.getPlatformMBeanServer().invoke(
                new ObjectName("com.sun.management:type=DiagnosticCommand"), command, null, null);
    }

    @Test
    void aClientOpensInAnImageWithTheModulesThatItNeeds() throws Exception {
        assertTrue(open("--limit-modules", "jdk.management,jdk.jfr").contains("opened"));
    }

    @Test
    void aClientThatCannotSetTheDirectiveIsRefused() throws Exception {
        var parts = List.of("IllegalStateException: HotSpot", "modules jdk.management and jdk.jfr", "java.io.tmpdir", Inlining.OPTION);
        var reasons = List.of(List.of("--limit-modules", "jdk.management"), List.of("--limit-modules", "java.base"),
                List.of("-Djava.io.tmpdir=/nonexistent"));
        for (var options : reasons) {
            var output = open(options.toArray(String[]::new));
            for (var part : parts) {
                assertTrue(output.contains(part), output);
            }
        }
    }

    @Test
    void theOptionReplacesTheDirective() throws Exception {
        assertTrue(open("--limit-modules", "java.management", Inlining.OPTION).contains("opened"));
    }

    @Test
    void eachClientMakesSureThatThereIsOneDirective() throws Exception {
        for (int i = 0; i < 2; i++) {
            directives("compilerDirectivesClear");
            Client.of(URL).close();
            Client.of(URL).close();
            assertEquals(2, directives("compilerDirectivesPrint").split("matching: rlock/", -1).length);
        }
    }
}
