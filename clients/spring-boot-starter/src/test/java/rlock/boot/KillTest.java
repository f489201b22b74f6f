package rlock.boot;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import javax.tools.ToolProvider;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.springframework.boot.SpringBootVersion;
import org.springframework.util.FileSystemUtils;

/** Two instances of an application, of which one is killed with -9 while it works. */
@Timeout(180)
class KillTest {
    @Test
    void theLockOfAKilledJobEndsWithLockAtMostFor() throws Exception {
        kill(Spring.Scheduler.class, (killed, begun, next) -> {
            assertTrue(next - begun >= 3500, "the lock was free before its lockAtMostFor");
            assertTrue(next - begun < 8000, "the other instance did not go on");
        });
    }

    @Test
    void theLockOfAKilledHolderGoesToTheOneThatWaitsWhenItsLeaseEnds() throws Exception {
        kill(Spring.Registry.class, (killed, begun, next) -> {
            assertTrue(next - killed >= 1500, "the lock was free before its lease ended");
            assertTrue(next - killed < 7000, "the other instance did not go on");
        }, "--rlock.registry.lease=3s");
    }

    /** As pasted, except for the address of the server. */
    @Test
    void theApplicationOfTheReadme() throws Exception {
        var page = Files.readString(Path.of("README.md"));
        var project = Files.createTempDirectory("rlock");
        try (var server = new Server()) {
            var source = project.resolve("Application.java");
            Files.writeString(source, block(page, "java"));
            Files.writeString(project.resolve("application.properties"),
                    block(page, "properties").replace("redis://127.0.0.1:6379", server.url()));
            var path = System.getProperty("java.class.path");
            var compiled = ToolProvider.getSystemJavaCompiler().run(null, null, null, "-cp", path, "-d", project.toString(),
                    source.toString());
            assertEquals(0, compiled);
            path = project + File.pathSeparator + path;
            var began = System.nanoTime();
            try (var one = new Spring.Instance(path, "orders.Application", "--server.port=0");
                    var two = new Spring.Instance(path, "orders.Application", "--server.port=0")) {
                for (var it : List.of(one, two)) {
                    it.next("invoice 7 is sent under fence 1");
                    it.next("invoice 7 is sent under fence 1");
                }
                var reports = Stream.of(one, two).mapToInt(it -> it.count("the report is written here")).sum();
                var seconds = Duration.ofNanos(System.nanoTime() - began).toSeconds();
                assertTrue(reports >= 1 && reports <= 1 + seconds / 4, reports + " reports in " + seconds + " s");
                assertTrue(server.ask("CLIENT", "LIST").contains("name=orders"));
            }
        } finally {
            FileSystemUtils.deleteRecursively(project);
        }
    }

    private static String block(String page, String language) {
        var found = Pattern.compile("```" + language + "\n(.*?)```", Pattern.DOTALL).matcher(page);
        assertTrue(found.find());
        return found.group(1);
    }

    private interface Check {
        void check(long killed, long begun, long next);
    }

    private static void kill(Class<?> main, Check check, String... more) throws Exception {
        try (var server = new Server()) {
            var arguments = new ArrayList<>(List.of("--rlock.url=" + server.url(), "--spring.main.web-application-type=none",
                    "--spring.main.banner-mode=off"));
            arguments.addAll(List.of(more));
            var path = System.getProperty("java.class.path");
            try (var one = new Spring.Instance(path, main.getName(), arguments.toArray(String[]::new));
                    var two = new Spring.Instance(path, main.getName(), arguments.toArray(String[]::new))) {
                one.next("begin");
                two.next("begin");
                one.next("begin");
                Thread.sleep(500);
                var killed = System.currentTimeMillis();
                one.kill();
                var begun = last(one.times("begin"));
                Spring.eventually("the other one works again", () -> last(two.times("begin")) > killed);
                var next = two.times("begin").stream().filter(it -> it > killed).findFirst().orElseThrow();
                System.out.printf("Spring Boot %s, %s: the other one went on %d ms after the kill, %d ms after the work began%n",
                        SpringBootVersion.getVersion(), main.getSimpleName(), next - killed, next - begun);
                check.check(killed, begun, next);
                // One after the other, except for the work that the kill has ended.
                var spans = new ArrayList<long[]>();
                for (var it : List.of(one, two)) {
                    var ends = it.times("end");
                    var begins = it.times("begin");
                    for (int i = 0; i < ends.size(); i++) {
                        spans.add(new long[] {begins.get(i), ends.get(i)});
                    }
                }
                spans.sort((a, b) -> Long.compare(a[0], b[0]));
                for (int i = 1; i < spans.size(); i++) {
                    assertTrue(spans.get(i)[0] >= spans.get(i - 1)[1], "two worked at once");
                }
                System.out.printf("%s: %d spans of work, none overlaps%n", main.getSimpleName(), spans.size());
            }
        }
    }

    private static long last(List<Long> times) {
        return times.get(times.size() - 1);
    }
}
