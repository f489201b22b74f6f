package rlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static rlock.Servers.ask;
import static rlock.Servers.eventually;
import static rlock.Servers.pause;

import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import net.javacrumbs.shedlock.core.DefaultLockingTaskExecutor;
import net.javacrumbs.shedlock.core.LockConfiguration;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.springframework.integration.support.locks.LockRegistry;
import rlock.shedlock.RlockProvider;
import rlock.spring.RlockRegistry;

/** The adapters with their libraries, on real servers. */
@Timeout(60)
class AdaptersTest {
    private static LockConfiguration task(int most, int least) {
        return new LockConfiguration(Instant.now(), "task", Duration.ofMillis(most), Duration.ofMillis(least));
    }

    @Test
    void aLockRegistryOfSpringIntegration() throws Exception {
        try (var server = new Servers(); var client = Client.of(server.url); var other = Client.of(server.url)) {
            LockRegistry registry = new RlockRegistry(client, "orders");
            var lock = registry.obtain(7);
            lock.lock();
            registry.obtain(7).lock();
            assertEquals(":1\r\n", ask(server.port(), "EXISTS", "orders:7"));
            var elsewhere = new RlockRegistry(other, "orders", Terms.standard().lease(Duration.ofMinutes(1))).obtain(7);
            assertFalse(elsewhere.tryLock());
            var waits = CompletableFuture.supplyAsync(() -> {
                try {
                    var isLocked = elsewhere.tryLock(10, TimeUnit.SECONDS);
                    elsewhere.unlock();
                    return isLocked;
                } catch (InterruptedException error) {
                    throw new IllegalStateException(error);
                }
            });
            eventually("it waits", () -> server.isQueued("orders:7", 1));
            lock.unlock();
            assertFalse(waits.isDone());
            lock.unlock();
            assertTrue(waits.get(10, TimeUnit.SECONDS));
            lock.lock();
            ask(server.port(), "RLOCK.FORCE", "orders:7");
            eventually("it is lost", () -> !client.getLock("orders:7").isHeldByCurrentThread());
            assertThrows(LostException.class, lock::tryLock);
            assertTrue(server.isFree("orders:7"));
            assertThrows(LostException.class, lock::unlock);
            assertTrue(lock.tryLock());
            lock.unlock();
        }
    }

    @Test
    void aLockProviderOfShedLock() throws Exception {
        try (var server = new Servers(); var one = Client.of(server.url); var two = Client.of(server.url)) {
            var here = new RlockProvider(one);
            var there = new RlockProvider(two);
            var held = here.lock(task(10_000, 0)).orElseThrow();
            assertTrue(there.lock(task(10_000, 0)).isEmpty());
            held.unlock();
            assertTrue(server.isFree("shedlock:task"));

            var runs = new int[1];
            new DefaultLockingTaskExecutor(here).executeWithLock((Runnable) () -> runs[0]++, task(10_000, 600));
            new DefaultLockingTaskExecutor(there).executeWithLock((Runnable) () -> runs[0]++, task(10_000, 600));
            assertEquals(1, runs[0], "taken for the least time");
            eventually("the least time is over", () -> server.isFree("shedlock:task"));

            var hung = here.lock(task(200, 0)).orElseThrow();
            pause(300);
            var next = there.lock(task(300, 0)).orElseThrow();
            assertThrows(LostException.class, hung::unlock);
            assertTrue(hung.extend(Duration.ofSeconds(1), Duration.ZERO).isEmpty());
            next = next.extend(Duration.ofSeconds(10), Duration.ofMillis(300)).orElseThrow();
            pause(350);
            assertTrue(here.lock(task(200, 0)).isEmpty());
            next.unlock();
            eventually("it is free", () -> server.isFree("shedlock:task"));
        }
    }

    /** The output of a program of a document, in which only the addresses of one server or of three are changed. */
    static String run(String source, String... urls) throws Exception {
        for (int i = 0; i < urls.length; i++) {
            source = source.replace("redis://" + (urls.length == 1 ? "127.0.0.1" : "locks-" + (i + 1)) + ":6379", urls[i]);
        }
        var directory = Files.createTempDirectory("rlock");
        var file = directory.resolve("Invoices.java");
        try {
            Files.writeString(file, source);
            var java = Path.of(System.getProperty("java.home"), "bin", "java").toString();
            var process = new ProcessBuilder(java, "--class-path", System.getProperty("java.class.path"), file.toString())
                    .redirectErrorStream(true).start();
            var output = new String(process.getInputStream().readAllBytes());
            assertEquals(0, process.waitFor(), output);
            return output;
        } finally {
            Files.delete(file);
            Files.delete(directory);
        }
    }

    /** The two programs of a document that send invoices: with Redisson, and with rlock. Their work is the same. */
    static List<String> migration(Path document) throws Exception {
        var programs = programs(document, "class Invoices");
        assertEquals(2, programs.size());
        assertEquals(1, programs.stream().map(it -> it.substring(it.indexOf("    static void send"))).distinct().count());
        return programs;
    }

    /** The programs of a document with this text. */
    static List<String> programs(Path document, String text) throws Exception {
        return Pattern.compile("```java\n(.*?)```", Pattern.DOTALL).matcher(Files.readString(document)).results()
                .map(found -> found.group(1)).filter(it -> it.contains(text)).collect(Collectors.toList());
    }

    @Test
    void theMigrationFromRedissonChangesTheImportAndTheSetUp() throws Exception {
        try (var server = new Servers()) {
            for (var program : migration(Path.of("README.md"))) {
                assertTrue(run(program, server.url).contains("sent by its holder: true"));
            }
        }
    }
}
