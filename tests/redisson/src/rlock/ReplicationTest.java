package rlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import org.redisson.config.SubscriptionMode;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;

/** Holds of both kinds outlive their server, and both kinds of waiters get their turn on its successor. */
class ReplicationTest {
    private Server master;
    private Server replica;
    private Client client;
    private Client successor;
    private RedissonClient redisson;
    private Actor holder;
    private Actor waiter;

    @BeforeEach
    void start() {
        holder = new Actor();
        waiter = new Actor();
        master = Server.start();
        replica = master.replica();
        client = master.connect();
        successor = replica.connect();
    }

    @AfterEach
    void stop() {
        if (redisson != null) {
            redisson.shutdown();
        }
        for (var each : new AutoCloseable[] {holder, waiter, client, successor, replica, master}) {
            try {
                each.close();
            } catch (Exception failure) {
                throw new IllegalStateException(failure);
            }
        }
    }

    private void program(Consumer<Config> topology) {
        redisson = World.redisson(World.LEASE, topology);
    }

    @Test
    void aReleaseAlsoWakesAProgramThatListensToAReplica() throws Exception {
        program(config -> config.useMasterSlaveServers()
                .setMasterAddress(master.address())
                .addSlaveAddress(replica.address())
                .setSubscriptionMode(SubscriptionMode.SLAVE)
                .setMasterConnectionMinimumIdleSize(1)
                .setSlaveConnectionMinimumIdleSize(1));
        Calm.run(() -> {
            var key = World.fresh("far");
            assertNotNull(client.acquire(key, "here", World.LEASE));
            // A server sends nothing to a new replica that has not acknowledged its data yet, which may take a second.
            assertEquals(1L, client.call("WAIT", 1, 10_000));
            var taken = waiter.start(redisson.getLock(key)::lock);
            Deadline.until("a listener", () -> successor.listeners(World.channel(key)) == 1);
            Deadline.sleep(20);
            long start = System.nanoTime();
            assertEquals(0, client.release(key, "here"));
            long milliseconds = (Actor.result(taken) - start) / 1_000_000;
            waiter.run(redisson.getLock(key)::unlock);
            assertTrue(milliseconds <= Calm.PROMPT, () -> "woken after " + milliseconds + " ms");
        });
    }

    /** A lock that Redisson holds and we wait for, and one that we hold and Redisson waits for. */
    private final class Both {
        final String theirs = World.fresh("theirs");
        final String ours = World.fresh("ours");
        final Future<Object> granted;
        final Future<Long> taken;
        final long fence;

        Both() throws Exception {
            holder.run(redisson.getLock(theirs)::lock);
            holder.run(redisson.getLock(theirs)::lock);
            fence = client.acquire(ours, "here", World.LEASE);
            assertEquals(fence, client.acquire(ours, "here", World.LEASE, "REENTER"));
            granted = client.waiting(theirs, "here", World.LEASE);
            taken = waiter.start(redisson.getLock(ours)::lock);
            Deadline.until("a listener", () -> client.listeners(World.channel(ours)) == 1);
            assertEquals(1L, client.call("WAIT", 1, 10_000));
        }

        void areHeldByTheSameOwners() throws Exception {
            assertEquals(redisson.getId() + ":" + holder.id(), successor.info(theirs).holder().owner());
            assertEquals(2, successor.info(theirs).holder().count());
            assertEquals("here", successor.info(ours).holder().owner());
            assertEquals(2, successor.info(ours).holder().count());
            assertEquals(fence, successor.info(ours).holder().fence());
        }

        /**
         * Who waited asks again, then both locks are released, once Redisson listens somewhere. False if it does not
         * within some seconds: then no message can reach it.
         */
        boolean changeHands(BooleanSupplier listens) throws Exception {
            var again = successor.waiting(theirs, "here", World.LEASE);
            assertTrue(holder.is(redisson.getLock(theirs)::isHeldByCurrentThread));
            holder.run(redisson.getLock(theirs)::unlock);
            holder.run(redisson.getLock(theirs)::unlock);
            assertTrue((Long) Actor.result(again) > fence);

            if (!Deadline.comes(listens, Duration.ofSeconds(5))) {
                return false;
            }
            assertEquals(1, successor.release(ours, "here"));
            assertEquals(0, successor.release(ours, "here"));
            Actor.result(taken);
            assertEquals(redisson.getId() + ":" + waiter.id(), successor.info(ours).holder().owner());
            return true;
        }
    }

    private boolean isPromoted() {
        try (var asks = replica.connect()) {
            return asks.call("INFO", "replication").toString().contains("role:master");
        } catch (JedisConnectionException closed) {
            return false;
        }
    }

    /** Until Redisson has found the new master, its commands fail. */
    private void untilRedissonGoesOn() {
        Deadline.until("Redisson goes on", () -> {
            var probe = redisson.getLock(World.fresh("probe"));
            try {
                return holder.is(probe::tryLock);
            } catch (Exception notYet) {
                return false;
            }
        });
    }

    @Test
    void bothKindsOfHoldsOutliveTheDeathOfTheirServer() throws Exception {
        try (var sentinel = master.sentinel()) {
            try (var asks = sentinel.connect()) {
                Deadline.until("a replica", () -> asks.call("SENTINEL", "REPLICAS", "locks").toString().contains("ip, 127"));
            }
            program(config -> config.useSentinelServers()
                    .setMasterName("locks")
                    .addSentinelAddress(sentinel.address())
                    .setCheckSentinelsList(false)
                    .setScanInterval(500)
                    .setMasterConnectionMinimumIdleSize(1)
                    .setSlaveConnectionMinimumIdleSize(1));
            var both = new Both();
            master.close();
            var failure = assertThrows(ExecutionException.class, both.granted::get);
            assertEquals(JedisConnectionException.class, failure.getCause().getClass());
            // The sentinel closes the connections of the server that it promotes.
            successor.close();
            Deadline.until("a promotion", this::isPromoted);
            successor = replica.connect();
            both.areHeldByTheSameOwners();
            untilRedissonGoesOn();
            assertTrue(both.changeHands(() -> successor.listeners(World.channel(both.ours)) == 1));
            redisson.shutdown();
        }
    }

    /** Now and then Redisson 4.7.0 ends its subscription when roles change, and begins no other one. */
    @Test
    void bothKindsOfHoldsOutliveAChangeOfRoles() throws Exception {
        for (int attempt = 1; !rolesChangeAndRedissonListens(); attempt++) {
            assertTrue(attempt < 5, "Redisson has stopped listening each time");
            stop();
            start();
        }
    }

    private boolean rolesChangeAndRedissonListens() throws Exception {
        program(config -> config.useReplicatedServers()
                .addNodeAddress(master.address(), replica.address())
                .setScanInterval(500)
                .setMasterConnectionMinimumIdleSize(1)
                .setSlaveConnectionMinimumIdleSize(1));
        var both = new Both();
        successor.call("REPLICAOF", "NO", "ONE");
        client.call("REPLICAOF", "127.0.0.1", replica.port());
        var failure = assertThrows(ExecutionException.class, both.granted::get);
        assertEquals(JedisDataException.class, failure.getCause().getClass());
        assertTrue(failure.getCause().getMessage().startsWith("UNBLOCKED"), failure::toString);
        both.areHeldByTheSameOwners();
        untilRedissonGoesOn();
        // Redisson may stay at the server that has become a replica, and gets messages there, too.
        var servers = List.of(successor, client);
        return both.changeHands(() -> servers.stream().anyMatch(it -> it.listeners(World.channel(both.ours)) == 1));
    }
}
