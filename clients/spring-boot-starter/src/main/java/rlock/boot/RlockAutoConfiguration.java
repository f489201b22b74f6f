package rlock.boot;

import io.micrometer.core.instrument.Counter;
import io.micrometer.core.instrument.FunctionCounter;
import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.binder.MeterBinder;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import net.javacrumbs.shedlock.core.LockProvider;
import org.springframework.beans.factory.DisposableBean;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.beans.factory.config.BeanFactoryPostProcessor;
import org.springframework.beans.factory.config.ConfigurableListableBeanFactory;
import org.springframework.boot.actuate.health.Health;
import org.springframework.boot.actuate.health.HealthIndicator;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnExpression;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.boot.ssl.SslBundles;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.integration.support.locks.LockRegistry;
import rlock.Client;
import rlock.Occurrence;
import rlock.RlockException;
import rlock.Terms;
import rlock.shedlock.RlockProvider;
import rlock.spring.RlockRegistry;

/** A client that ends after all beans that may hold its locks, and what else an application can use it for. */
@AutoConfiguration
@EnableConfigurationProperties(RlockProperties.class)
public class RlockAutoConfiguration {
    /**
     * Closes the client. Beans end in the reverse order of their creation, and Spring creates beans of this kind before all
     * others. As an ordinary bean, the client would end before a scheduler that was created earlier, and whose tasks may
     * still hold locks.
     */
    static final class Closing implements BeanFactoryPostProcessor, DisposableBean {
        private Client client;
        private Duration timeout;

        @Override
        public void postProcessBeanFactory(ConfigurableListableBeanFactory beans) {}

        @Override
        public void destroy() {
            if (client != null) {
                client.close(timeout);
            }
        }
    }

    @Bean
    static Closing rlockClosing() {
        return new Closing();
    }

    @Bean(destroyMethod = "")
    @ConditionalOnMissingBean
    Client rlockClient(RlockProperties properties, ObjectProvider<SslBundles> bundles, Closing closing,
            ObjectProvider<OccurrenceListener> listeners, @Value("${spring.application.name:}") String applicationName) {
        var builder = properties.builder(applicationName);
        var bundle = properties.ssl().bundle();
        if (bundle != null) {
            builder.tls(bundles.getObject().getBundle(bundle).createSslContext());
        }
        // Here, as looking for beans in the client's thread could wait for the thread that starts the application.
        listeners.orderedStream().reduce(RlockAutoConfiguration::both).ifPresent(it -> builder.listener(it::hear));
        closing.timeout = properties.closeTimeout();
        closing.client = builder.build();
        return closing.client;
    }

    /** The second listener also hears of it if the first one throws. */
    private static OccurrenceListener both(OccurrenceListener one, OccurrenceListener other) {
        return it -> {
            try {
                one.hear(it);
            } finally {
                other.hear(it);
            }
        };
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(LockRegistry.class)
    static class OfSpringIntegration {
        @Bean
        @ConditionalOnMissingBean(LockRegistry.class)
        RlockRegistry rlockRegistry(Client client, RlockProperties properties) {
            var registry = properties.registry();
            return new RlockRegistry(client, registry.prefix(), Terms.standard().lease(registry.lease()));
        }
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(LockProvider.class)
    static class OfShedLock {
        @Bean
        @ConditionalOnMissingBean(LockProvider.class)
        RlockProvider rlockProvider(Client client, RlockProperties properties) {
            return new RlockProvider(client, properties.shedlock().prefix());
        }
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(MeterBinder.class)
    static class OfMicrometer {
        @Bean
        Meters rlockMeters(ObjectProvider<Client> client) {
            return new Meters(client, new CopyOnWriteArrayList<>());
        }
    }

    /** What the client counts and tells. No tag is the name of a lock: there may be any number of names. */
    record Meters(ObjectProvider<Client> client, List<MeterRegistry> registries) implements MeterBinder, OccurrenceListener {
        @Override
        public void bindTo(MeterRegistry registry) {
            var names = Map.of("grants", "grants", "waits", "waits", "losses", "losses", "lateRenewals", "late.renewals",
                    "reconnects", "reconnects");
            names.forEach((counted, name) -> FunctionCounter
                    .builder("rlock.client." + name, client.getObject(), it -> count(it, counted)).register(registry));
            others(registry, "at_risk"); // Zero before the first one, for alerts.
            registries.add(registry);
        }

        @Override
        public void hear(Occurrence it) {
            for (var registry : registries) {
                switch (it.kind()) {
                    case "wait", "hold" -> registry.timer("rlock.client." + it.kind() + ".duration", "rlock.outcome", it.outcome())
                            .record(it.duration());
                    default -> others(registry, it.kind()).increment();
                }
            }
        }

        private static Counter others(MeterRegistry registry, String kind) {
            return registry.counter("rlock.client.occurrences", "rlock.kind", kind);
        }

        private static double count(Client client, String counted) {
            try {
                return client.metrics().get(counted);
            } catch (RlockException closed) {
                return Double.NaN;
            }
        }
    }

    /** {@code UP}, or why not. */
    record State(String status, String error) {
        /** While the client reconnects it is degraded, and down for a reason that does not pass by itself. */
        static State of(Client client) {
            try {
                client.connect();
                return new State("UP", null);
            } catch (RlockException error) {
                return new State(error.isTransient() ? "DEGRADED" : "DOWN", error.getMessage());
            }
        }
    }

    private static final String WANTED = "${management.health.rlock.enabled:${management.health.defaults.enabled:true}}";

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(HealthIndicator.class)
    @ConditionalOnExpression(WANTED)
    static class OfActuator3 {
        @Bean
        HealthIndicator rlockHealthIndicator(Client client) {
            return () -> {
                var state = State.of(client);
                var health = Health.status(state.status);
                return (state.error == null ? health : health.withDetail("error", state.error)).build();
            };
        }
    }

    /** The same: the classes have other names in Spring Boot 4. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(org.springframework.boot.health.contributor.HealthIndicator.class)
    @ConditionalOnExpression(WANTED)
    static class OfActuator4 {
        @Bean
        org.springframework.boot.health.contributor.HealthIndicator rlockHealthIndicator(Client client) {
            return () -> {
                var state = State.of(client);
                var health = org.springframework.boot.health.contributor.Health.status(state.status);
                return (state.error == null ? health : health.withDetail("error", state.error)).build();
            };
        }
    }
}
