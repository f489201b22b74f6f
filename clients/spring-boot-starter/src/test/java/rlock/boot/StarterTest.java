package rlock.boot;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import com.jayway.jsonpath.JsonPath;
import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.binder.MeterBinder;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import net.javacrumbs.shedlock.core.LockProvider;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.autoconfigure.AutoConfigurations;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.boot.test.context.FilteredClassLoader;
import org.springframework.boot.test.context.runner.ApplicationContextRunner;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.core.Ordered;
import org.springframework.core.annotation.Order;
import org.springframework.integration.leader.Context;
import org.springframework.integration.leader.DefaultCandidate;
import org.springframework.integration.support.leader.LockRegistryLeaderInitiator;
import org.springframework.integration.support.locks.LockRegistry;
import org.springframework.scheduling.annotation.EnableScheduling;
import org.springframework.scheduling.annotation.Scheduled;
import rlock.Client;
import rlock.LostException;
import rlock.RlockException;

/** The beans of the starter in applications, on real servers. */
@Timeout(120)
class StarterTest {
    @Configuration
    @EnableAutoConfiguration
    static class Empty {}

    private static ConfigurableApplicationContext start(Class<?> application, WebApplicationType web, String url, String... more) {
        var properties = new ArrayList<>(Arrays.asList(more));
        properties.add("rlock.url=" + url);
        properties.add("spring.main.banner-mode=off");
        properties.add("server.port=0");
        properties.add("logging.level.root=warn");
        // Applications that cannot start are part of the tests.
        properties.add("logging.level.org.springframework.boot=off");
        return new SpringApplicationBuilder(application).web(web).properties(properties.toArray(String[]::new)).run();
    }

    private static ConfigurableApplicationContext start(String url, String... more) {
        return start(Empty.class, WebApplicationType.NONE, url, more);
    }

    @Test
    void aContextThatClosesReleasesWhatIsHeldAndEndsWaits() throws Exception {
        try (var server = new Server(); var other = Client.of(server.url())) {
            var context = start(server.url(), "spring.application.name=Order service");
            var registry = context.getBean(LockRegistry.class);
            registry.obtain(7).lock();
            assertThat(server.ask("RLOCK.INFO", "spring-integration:7")).contains("Order-service");
            var taken = other.getLock("spring-integration:8").acquire();
            var waits = CompletableFuture.runAsync(() -> registry.obtain(8).lock());
            Spring.eventually("it waits", () -> server.ask("RLOCK.INFO", "spring-integration:8").contains("queued\r\n:1\r\n"));
            var began = System.nanoTime();
            context.close();
            var took = Duration.ofNanos(System.nanoTime() - began).toMillis();
            assertThat(server.isFree("spring-integration:7")).isTrue();
            assertThatThrownBy(() -> waits.get(5, TimeUnit.SECONDS)).hasRootCauseInstanceOf(RlockException.class);
            taken.close();
            assertThat(server.isFree("spring-integration:8")).isTrue();
            System.out.printf("the context has closed within %d ms%n", took);
        }
    }

    /** A task that is longer than the time that the context waits for it. */
    @Configuration
    @EnableAutoConfiguration
    @EnableScheduling
    static class LongTask {
        final CountDownLatch holds = new CountDownLatch(1);
        final CompletableFuture<Boolean> wasHeld = new CompletableFuture<>();
        /** So the client may be created after the scheduler, as for ShedLock. */
        private final ObjectProvider<Client> client;

        LongTask(ObjectProvider<Client> client) {
            this.client = client;
        }

        @Scheduled(fixedDelay = 3_600_000)
        void task() {
            var lock = client.getObject().getLock("long");
            lock.lock();
            holds.countDown();
            try {
                Thread.sleep(60_000);
            } catch (InterruptedException end) {
                wasHeld.complete(lock.isHeldByCurrentThread());
            } finally {
                lock.unlock();
            }
        }
    }

    @Test
    void aTaskHoldsItsLockUntilItsSchedulerEndsIt() throws Exception {
        try (var server = new Server()) {
            // Health would need the client before the scheduler.
            var context = start(LongTask.class, WebApplicationType.NONE, server.url(), "management.health.rlock.enabled=false",
                    "spring.lifecycle.timeout-per-shutdown-phase=300ms", "spring.task.scheduling.shutdown.await-termination-period=5s");
            var task = context.getBean(LongTask.class);
            task.holds.await();
            context.close();
            assertThat(task.wasHeld.get(5, TimeUnit.SECONDS)).isTrue();
            assertThat(server.isFree("long")).isTrue();
        }
    }

    private static String get(ConfigurableApplicationContext context, String path) throws Exception {
        var address = "http://127.0.0.1:" + context.getEnvironment().getProperty("local.server.port") + path;
        var answer = HttpClient.newHttpClient().send(HttpRequest.newBuilder(URI.create(address)).build(), BodyHandlers.ofString());
        return answer.statusCode() + " " + answer.body();
    }

    private static String status(ConfigurableApplicationContext context) throws Exception {
        return JsonPath.read(get(context, "/actuator/health").substring(4), "$.components.rlock.status");
    }

    @Test
    void healthIsDegradedWhileTheClientReconnects() throws Exception {
        try (var server = new Server(); var context = start(Empty.class, WebApplicationType.SERVLET, server.url(),
                "management.endpoint.health.show-details=always")) {
            assertThat(status(context)).isEqualTo("UP");
            context.getBean(LockRegistry.class).obtain(7).lock();
            server.kill();
            var began = System.nanoTime();
            var all = get(context, "/actuator/health");
            assertThat(all).startsWith("200 ").contains("\"status\":\"DEGRADED\"").containsIgnoringCase("connection");
            System.out.printf("%d ms after the server was killed: %s%n", Duration.ofNanos(System.nanoTime() - began).toMillis(), all);
            server.start();
            began = System.nanoTime();
            Spring.eventually("it is up", () -> status(context).equals("UP"));
            System.out.printf("up %d ms after the server%n", Duration.ofNanos(System.nanoTime() - began).toMillis());
            assertThat(count(context, "reconnects")).isEqualTo(1);
        }
    }

    @Test
    void healthIsDownWithoutTheModule() throws Exception {
        try (var server = new Server(false); var context = start(Empty.class, WebApplicationType.SERVLET, server.url(),
                "management.endpoint.health.show-details=always")) {
            var all = get(context, "/actuator/health");
            assertThat(all).startsWith("503 ").contains("\"status\":\"DOWN\"").contains("module");
        }
    }

    private static double count(ConfigurableApplicationContext context, String what) {
        return context.getBean(MeterRegistry.class).get("rlock.client." + what).functionCounter().count();
    }

    @Test
    void metersCountWithoutTheNamesOfLocks() throws Exception {
        try (var server = new Server(); var context = start(server.url())) {
            var lock = context.getBean(LockRegistry.class).obtain("secret");
            lock.lock();
            server.ask("RLOCK.FORCE", "spring-integration:secret");
            Spring.eventually("it is lost", () -> !isHeld(context, "secret"));
            assertThatThrownBy(lock::unlock).isInstanceOf(LostException.class);
            lock.lock();
            var waits = CompletableFuture.runAsync(() -> {
                var same = context.getBean(LockRegistry.class).obtain("secret");
                same.lock();
                same.unlock();
            });
            Spring.eventually("it waits", () -> count(context, "waits") == 1);
            lock.unlock();
            waits.get(5, TimeUnit.SECONDS);
            assertThat(count(context, "grants")).isEqualTo(3);
            assertThat(count(context, "losses")).isEqualTo(1);
            assertThat(count(context, "late.renewals")).isZero();
            assertThat(count(context, "reconnects")).isZero();
            var meters = context.getBean(MeterRegistry.class);
            Spring.eventually("all has been recorded", () -> meters.get("rlock.client.hold.duration").timers().size() == 2);
            var shown = meters.getMeters().stream().map(it -> it.getId()).filter(it -> it.getName().startsWith("rlock"))
                    .map(it -> it.getName().substring(13) + it.getTags().stream().map(Object::toString).toList());
            assertThat(shown).containsExactlyInAnyOrder("grants[]", "waits[]", "losses[]", "late.renewals[]", "reconnects[]",
                    "wait.duration[tag(rlock.outcome=granted)]", "hold.duration[tag(rlock.outcome=released)]",
                    "hold.duration[tag(rlock.outcome=ended_by_server)]", "occurrences[tag(rlock.kind=connected)]",
                    "occurrences[tag(rlock.kind=at_risk)]");
            assertThat(meters.get("rlock.client.wait.duration").timer().count()).isEqualTo(3);
            assertThat(meters.get("rlock.client.occurrences").tag("rlock.kind", "connected").counter().count()).isEqualTo(1);
            assertThat(meters.get("rlock.client.occurrences").tag("rlock.kind", "at_risk").counter().count()).isZero();
            var grants = context.getBean(MeterRegistry.class).get("rlock.client.grants").functionCounter();
            context.close();
            assertThat(grants.count()).isNaN();
        }
    }

    /** Beans of other types are no listeners. */
    @Configuration
    @EnableAutoConfiguration
    static class Listening {
        final List<String> heard = new CopyOnWriteArrayList<>();

        @Bean
        @Order(Ordered.HIGHEST_PRECEDENCE)
        OccurrenceListener listener() {
            return it -> {
                heard.add(it.kind());
                throw new IllegalStateException("a mistake of the application");
            };
        }

        @Bean
        Consumer<String> other() {
            return text -> heard.add(text.trim());
        }
    }

    @Test
    void aListenerOfTheApplicationHearsToo() throws Exception {
        try (var server = new Server(); var context = start(Listening.class, WebApplicationType.NONE, server.url())) {
            // Spring Cloud binds the only bean of such a type.
            assertThat(context.getBeanNamesForType(Consumer.class)).containsExactly("other");
            var lock = context.getBean(LockRegistry.class).obtain(7);
            lock.lock();
            lock.unlock();
            var heard = context.getBean(Listening.class).heard;
            Spring.eventually("the hold", () -> heard.contains("hold"));
            assertThat(heard).containsExactly("connected", "wait", "hold");
            var meters = context.getBean(MeterRegistry.class);
            assertThat(meters.get("rlock.client.wait.duration").timer().count()).isEqualTo(1);
        }
    }

    @Test
    void tlsByAnSslBundle() throws Exception {
        var program = new ProcessBuilder(Server.environment("RLOCK_TESTSERVER", "../../target/debug/rlock-testserver"), "one", "--tls").start();
        try {
            var about = program.inputReader().readLine();
            var url = JsonPath.<String>read(about, "$.tls.url");
            var store = KeyStore.getInstance("PKCS12");
            store.load(null, null);
            try (var authority = Files.newInputStream(Path.of(JsonPath.<String>read(about, "$.tls.authority")))) {
                store.setCertificateEntry("authority", CertificateFactory.getInstance("X.509").generateCertificate(authority));
            }
            var file = Files.createTempFile("rlock", ".p12");
            try (var out = Files.newOutputStream(file)) {
                store.store(out, "secret".toCharArray());
            }
            // The bundle alone says that it is TLS.
            try (var context = start(url.replace("rediss:", "redis:"), "rlock.ssl.bundle=locks",
                    "spring.ssl.bundle.jks.locks.truststore.location=file:" + file,
                    "spring.ssl.bundle.jks.locks.truststore.password=secret")) {
                context.getBean(Client.class).connect();
                context.getBean(LockRegistry.class).obtain(7).lock();
            } finally {
                Files.delete(file);
            }
            try (var context = start(url)) {
                assertThatThrownBy(context.getBean(Client.class)::connect).hasMessageContaining("certif");
            }
            assertThatThrownBy(() -> start(url, "rlock.ssl.bundle=other")).hasStackTraceContaining("'other'");
        } finally {
            program.destroy();
            program.waitFor();
        }
    }

    @Test
    void aUserAndAPassword() throws Exception {
        var password = "a:b@c/d%e+f$\\1?#";
        try (var server = new Server()) {
            server.ask("ACL", "SETUSER", "ann@home", "on", ">" + password, "~*", "&*", "+@all");
            server.ask("CONFIG", "SET", "requirepass", password);
            try (var context = start(server.url(), "rlock.password=" + password)) {
                context.getBean(Client.class).connect();
            }
            try (var context = start(server.url(), "rlock.username=ann@home", "rlock.password=" + password)) {
                context.getBean(Client.class).connect();
            }
            try (var context = start(server.url(), "rlock.password=wrong")) {
                assertThatThrownBy(context.getBean(Client.class)::connect).hasMessageContaining("WRONGPASS");
            }
            // What is left of a variable that is not set.
            try (var context = start(server.url(), "rlock.username=", "rlock.password=")) {
                assertThatThrownBy(context.getBean(Client.class)::connect).hasMessageContaining("NOAUTH");
            }
        }
        assertThatThrownBy(() -> start("redis://ann:a-secret@127.0.0.1", "rlock.password=b-secret")).rootCause()
                .hasMessage("rlock.password is set, and rlock.url has a user or a password too");
        assertThatThrownBy(() -> start("redis://127.0.0.1", "rlock.username=ann")).rootCause()
                .hasMessage("rlock.username is set, rlock.password is not");
    }

    @Test
    void aRegistryKeepsNothingOfLocksThatAreNotHeld() throws Exception {
        try (var server = new Server(); var context = start(server.url())) {
            var registry = context.getBean(LockRegistry.class);
            var held = registry.obtain("held");
            held.lock();
            use(registry, "first", 2_000);
            var before = memory();
            use(registry, "then", 30_000);
            for (int i = 0; i < 2_000; i++) {
                var key = "thread" + i;
                var thread = new Thread(() -> use(registry, key, 1));
                thread.start();
                thread.join();
            }
            var more = memory() - before;
            System.out.printf("after 32,000 other locks, in 2,001 threads, %d KiB more are in use%n", more >> 10);
            assertThat(more).isLessThan(1 << 20);
            assertThat(isHeld(context, "held")).isTrue();
            held.unlock();
        }
    }

    /** Whether this thread holds it. */
    private static boolean isHeld(ConfigurableApplicationContext context, String key) {
        return context.getBean(Client.class).getLock("spring-integration:" + key).isHeldByCurrentThread();
    }

    private static void use(LockRegistry registry, String prefix, int count) {
        for (int i = 0; i < count; i++) {
            var lock = registry.obtain(prefix + i);
            lock.lock();
            lock.unlock();
        }
    }

    private static long memory() {
        for (int i = 0; i < 3; i++) {
            System.gc();
        }
        return Runtime.getRuntime().totalMemory() - Runtime.getRuntime().freeMemory();
    }

    /** Spring's leader enters its lock again and again to see whether it still has it. */
    @Test
    void aLeaderOfSpringIntegrationLearnsOfALoss() throws Exception {
        var revoked = new CountDownLatch(1);
        var candidate = new DefaultCandidate("one", "orders") {
            @Override
            public void onRevoked(Context context) {
                revoked.countDown();
            }
        };
        try (var server = new Server(); var context = start(server.url())) {
            var leader = new LockRegistryLeaderInitiator(context.getBean(LockRegistry.class), candidate);
            leader.start();
            Spring.eventually("it leads", () -> leader.getContext().isLeader());
            server.ask("RLOCK.FORCE", "spring-integration:orders");
            var began = System.nanoTime();
            assertThat(revoked.await(10, TimeUnit.SECONDS)).isTrue();
            System.out.printf("revoked %d ms after the loss%n", Duration.ofNanos(System.nanoTime() - began).toMillis());
            Spring.eventually("it leads again", () -> leader.getContext().isLeader());
            assertThat(server.isFree("spring-integration:orders")).isFalse();
            leader.stop();
            Spring.eventually("it has resigned", () -> server.isFree("spring-integration:orders"));
        }
    }

    @Test
    void whatTheApplicationDoesNotHaveIsLeftOut() {
        var runner = new ApplicationContextRunner().withConfiguration(AutoConfigurations.of(RlockAutoConfiguration.class));
        runner.run(it -> {
            assertThat(it).hasSingleBean(Client.class).hasSingleBean(LockRegistry.class).hasSingleBean(LockProvider.class)
                    .hasSingleBean(MeterBinder.class).hasBean("rlockHealthIndicator");
        });
        runner.withClassLoader(new FilteredClassLoader("org.springframework.integration", "net.javacrumbs.shedlock",
                "io.micrometer", "org.springframework.boot.actuate", "org.springframework.boot.health")).run(it -> {
            assertThat(it).hasNotFailed().hasSingleBean(Client.class).doesNotHaveBean("rlockRegistry")
                    .doesNotHaveBean("rlockProvider").doesNotHaveBean("rlockMeters").doesNotHaveBean("rlockHealthIndicator");
        });
        runner.withPropertyValues("management.health.rlock.enabled=false").run(it ->
                assertThat(it).doesNotHaveBean("rlockHealthIndicator"));
        runner.withPropertyValues("management.health.defaults.enabled=false").run(it ->
                assertThat(it).doesNotHaveBean("rlockHealthIndicator"));
        runner.withBean("own", LockRegistry.class, () -> key -> null).run(it ->
                assertThat(it).hasSingleBean(LockRegistry.class));
    }
}
