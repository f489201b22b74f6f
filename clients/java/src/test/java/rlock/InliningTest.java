package rlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.management.ManagementFactory;
import java.util.List;
import java.util.stream.Stream;
import javax.management.ObjectName;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The directive for HotSpot's C2. */
@Timeout(60)
class InliningTest {
    /** The output of a client with this engine, in a JVM with these options. */
    private static String open(String... options) throws Exception {
        return EngineTest.open(Stream.concat(Stream.of("-Drlock.engine=bytecode"), Stream.of(options)).toArray(String[]::new));
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
    void eachEngineMakesSureThatThereIsOneDirective() throws Exception {
        for (int i = 0; i < 2; i++) {
            directives("compilerDirectivesClear");
            new Bytecode();
            new Bytecode();
            assertEquals(2, directives("compilerDirectivesPrint").split("matching: rlock/", -1).length);
        }
    }
}
