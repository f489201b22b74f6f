package rlock;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The native engine and the one in bytecode, and which of them a client has. */
@Timeout(60)
class EngineTest {
    /** Opens a client, which does not connect, and prints its engine. */
    static final class Program {
        public static void main(String[] arguments) {
            Client.of("redis://127.0.0.1:1").close();
            System.out.println("opened " + Engine.machine(System.getProperty(Engine.KIND, "")).getClass().getSimpleName());
        }
    }

    /** The output of the program in a JVM with these options. */
    static String open(String... options) throws Exception {
        var command = new ArrayList<>(List.of(Path.of(System.getProperty("java.home"), "bin", "java").toString()));
        command.addAll(List.of(options));
        command.addAll(List.of("--class-path", System.getProperty("java.class.path"), Program.class.getName()));
        var process = new ProcessBuilder(command).redirectErrorStream(true).start();
        var output = new String(process.getInputStream().readAllBytes());
        assertEquals(output.contains("opened") ? 0 : 1, process.waitFor(), output);
        return output;
    }

    private static void contains(String output, String... parts) {
        for (var part : parts) {
            assertTrue(output.contains(part), output);
        }
    }

    private static Engine.Writer writer(String hex) {
        var writer = new Engine.Writer();
        writer.raw(HexFormat.of().parseHex(hex));
        return writer;
    }

    @Test
    void bothEnginesAnswerAsRecorded() throws Exception {
        var file = System.getenv().getOrDefault("RLOCK_RUN", "../../crates/rlock-embed/tests/host/run.json");
        var run = new ObjectMapper().readTree(new File(file));
        for (var machine : List.of(new Native(), new Bytecode())) {
            assertEquals(Format.VERSION, machine.version());
            assertNull(machine.open(writer(run.get("configuration").get("bytes").asText())));
            for (var step : run.get("steps")) {
                var output = machine.handle(writer(step.get("event").asText()), step.get("now").asLong());
                assertEquals(step.get("output").asText(), HexFormat.of().formatHex(output));
            }
            assertNull(machine.handle(writer("ff"), 0), "malformed");
            assertEquals(0, machine.remaining(12345, 0));
            machine.close();
        }
    }

    @Test
    void bothEnginesTakeAndReturnWhatIsLargerThanTheirBuffer() throws Exception {
        var keys = IntStream.range(0, 1024).mapToObj(number -> "k".repeat(200) + number).toArray(String[]::new);
        try (var server = new Servers()) {
            for (var kind : List.of("native", "bytecode")) {
                System.setProperty(Engine.KIND, kind);
                try (var client = Client.of(server.url); var all = client.getMultiLock(keys).acquire()) {
                    assertEquals(1024, all.fences().size());
                } finally {
                    System.clearProperty(Engine.KIND);
                }
            }
            var wrong = new Native().open(writer("01000000"));
            assertArrayEquals(new Bytecode().open(writer("01000000")), wrong);
        }
    }

    @Test
    void theNativeEngineIsTheDefaultAndNeedsNoModule() throws Exception {
        var directory = Files.createTempDirectory("rlock");
        contains(open("--limit-modules", "java.base", "-D" + Native.DIRECTORY + "=" + directory), "opened Native");
        try (var left = Files.list(directory)) {
            assertEquals(List.of(), left.toList());
        }
        Files.delete(directory);
        contains(open("-Drlock.engine=native"), "opened Native");
        contains(open("-Drlock.engine=bytecode"), "opened Bytecode");
    }

    @Test
    void anEngineThatCannotBeHadIsNamed() throws Exception {
        var nowhere = "-D" + Native.DIRECTORY + "=/nonexistent";
        contains(open(nowhere), "WARNING: cannot load the native engine (java.nio.file.NoSuchFileException: /nonexistent/rlock",
                "), using the slower one in bytecode", "opened Bytecode");
        contains(open(nowhere, "-Drlock.engine=native"), "IllegalStateException: the native engine cannot be loaded: java.nio");
        contains(open("-Dos.arch=sparc"), "opened Bytecode");
        contains(open("-Dos.arch=sparc", "-Drlock.engine=native"), "there is no native/linux-sparc/librlock.so in the jar");
        contains(open("-Drlock.engine=quick"), "IllegalArgumentException: rlock.engine is quick, it must be native or bytecode");
    }

    /** As of two applications in one process. */
    @Test
    void eachClassLoaderHasItsOwnLibrary() throws Exception {
        var urls = Stream.of(System.getProperty("java.class.path").split(File.pathSeparator)).map(path -> {
            try {
                return Path.of(path).toUri().toURL();
            } catch (java.net.MalformedURLException error) {
                throw new IllegalStateException(error);
            }
        }).toArray(URL[]::new);
        for (int i = 0; i < 2; i++) {
            try (var loader = new URLClassLoader(urls, ClassLoader.getPlatformClassLoader())) {
                var problem = loader.loadClass(Native.class.getName()).getDeclaredMethod("problem");
                problem.setAccessible(true);
                assertNull(problem.invoke(null));
            }
        }
    }
}
