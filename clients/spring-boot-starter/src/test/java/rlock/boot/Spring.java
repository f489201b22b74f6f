package rlock.boot;

import java.io.BufferedReader;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import net.javacrumbs.shedlock.spring.annotation.EnableSchedulerLock;
import net.javacrumbs.shedlock.spring.annotation.SchedulerLock;
import org.springframework.boot.CommandLineRunner;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.integration.support.locks.LockRegistry;
import org.springframework.scheduling.annotation.EnableScheduling;
import org.springframework.scheduling.annotation.Scheduled;

/** Applications, which print when they begin and end work that only one may do at a time. */
final class Spring {
    private Spring() {}

    /** Work of 1.5 s. */
    static void work() throws InterruptedException {
        System.out.println("begin " + System.currentTimeMillis());
        Thread.sleep(1500);
        System.out.println("end " + System.currentTimeMillis());
    }

    @Configuration
    @EnableAutoConfiguration
    @EnableScheduling
    @EnableSchedulerLock(defaultLockAtMostFor = "4s")
    public static class Scheduler {
        public static void main(String[] arguments) {
            SpringApplication.run(Scheduler.class, arguments);
        }

        @Scheduled(fixedDelay = 50)
        @SchedulerLock(name = "work")
        public void job() throws InterruptedException {
            work();
        }
    }

    @Configuration
    @EnableAutoConfiguration
    public static class Registry {
        public static void main(String[] arguments) {
            SpringApplication.run(Registry.class, arguments);
        }

        @Bean
        CommandLineRunner worker(LockRegistry registry) {
            return arguments -> {
                while (true) {
                    var lock = registry.obtain("work");
                    lock.lockInterruptibly();
                    try {
                        work();
                    } finally {
                        lock.unlock();
                    }
                }
            };
        }
    }

    /** An instance of an application in a process of its own. */
    static final class Instance implements AutoCloseable {
        private final Process process;
        private final BlockingQueue<String> lines = new LinkedBlockingQueue<>();
        final List<String> all = new ArrayList<>();

        Instance(String classPath, String main, String... arguments) throws Exception {
            var java = Path.of(System.getProperty("java.home"), "bin", "java").toString();
            var command = new ArrayList<>(List.of(java, "-XX:TieredStopAtLevel=1", "-Xmx128m", "-cp", classPath, main));
            command.addAll(List.of(arguments));
            process = new ProcessBuilder(command).redirectErrorStream(true).start();
            var reader = new Thread(() -> read(process.inputReader()));
            reader.setDaemon(true);
            reader.start();
        }

        private void read(BufferedReader from) {
            from.lines().forEach(line -> {
                synchronized (all) {
                    all.add(line);
                }
                lines.add(line);
            });
        }

        /** The next line that begins with this word. */
        String next(String word) throws InterruptedException {
            var end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
            while (System.nanoTime() < end) {
                var line = lines.poll(1, TimeUnit.SECONDS);
                if (line != null && line.startsWith(word)) {
                    return line;
                }
            }
            throw new AssertionError("not within 60 s: " + word + "\n" + String.join("\n", all));
        }

        /** The times in milliseconds that it has printed after this word. */
        List<Long> times(String word) {
            synchronized (all) {
                return all.stream().filter(it -> it.startsWith(word + " ")).map(it -> Long.valueOf(it.split(" ")[1])).toList();
            }
        }

        int count(String line) {
            synchronized (all) {
                return Collections.frequency(all, line);
            }
        }

        /** As {@code kill -9} does. */
        void kill() throws InterruptedException {
            process.destroyForcibly().waitFor();
        }

        @Override
        public void close() throws InterruptedException {
            kill();
        }
    }

    static void eventually(String what, Callable<Boolean> condition) throws Exception {
        for (var end = System.nanoTime() + TimeUnit.SECONDS.toNanos(20); !condition.call();) {
            if (System.nanoTime() > end) {
                throw new AssertionError("not within 20 s: " + what);
            }
            Thread.sleep(10);
        }
    }
}
