package rlock.boot;

import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import org.springframework.boot.context.properties.ConfigurationProperties;
import org.springframework.boot.context.properties.bind.DefaultValue;
import rlock.Client;

/**
 * The properties that begin with {@code rlock}.
 *
 * @param url The server, the Sentinels or the nodes of a cluster.
 * @param username The user on the server. It goes with a password, and not with a user in the URL.
 * @param password The password, without or with a user name.
 * @param clientName Begins the names of connections and owners: 1 to 64 bytes without spaces. Default:
 *     spring.application.name.
 * @param responseTimeout How long the server may take for one reply.
 * @param retryTimeout How long calls that do not wait for a lock are retried while servers are unreachable.
 * @param replicationTimeout How long replicas may take to acknowledge a grant.
 * @param closeTimeout How long the releases at the end of the context may take.
 * @param ssl TLS.
 * @param registry The LockRegistry of Spring Integration.
 * @param shedlock The LockProvider of ShedLock.
 */
@ConfigurationProperties("rlock")
public record RlockProperties(
        @DefaultValue("redis://127.0.0.1:6379") String url,
        String username,
        String password,
        String clientName,
        @DefaultValue("5s") Duration responseTimeout,
        @DefaultValue("10s") Duration retryTimeout,
        @DefaultValue("1s") Duration replicationTimeout,
        @DefaultValue("5s") Duration closeTimeout,
        @DefaultValue Ssl ssl,
        @DefaultValue Registry registry,
        @DefaultValue Shedlock shedlock) {

    /**
     * TLS.
     *
     * @param bundle The SSL bundle with the certificates. With it, the connection uses TLS even if the URL does not say so.
     */
    public record Ssl(String bundle) {}

    /**
     * The LockRegistry of Spring Integration.
     *
     * @param prefix Begins the names of its locks on the server, before a colon. Services that share locks have the same.
     * @param lease How long others wait if the process dies. It is renewed every third of this time.
     */
    public record Registry(@DefaultValue("spring-integration") String prefix, @DefaultValue("30s") Duration lease) {}

    /**
     * The LockProvider of ShedLock.
     *
     * @param prefix Begins the names of its locks on the server. Services that share tasks have the same.
     */
    public record Shedlock(@DefaultValue("shedlock:") String prefix) {}

    /** A builder with these settings, but without the certificates of the bundle. */
    Client.Builder builder(String applicationName) {
        var address = ssl.bundle == null ? url : url.replaceFirst("^redis(?=[:+])", "rediss");
        // An empty property is what an environment variable that is not set leaves.
        var user = username == null ? "" : username;
        if (password == null && !user.isEmpty()) {
            throw new IllegalArgumentException("rlock.username is set, rlock.password is not");
        }
        if (password != null && !(user + password).isEmpty()) {
            if (url.contains("@")) {
                throw new IllegalArgumentException("rlock.password is set, and rlock.url has a user or a password too");
            }
            address = address.replaceFirst("://", "://" + encoded(user) + ":" + encoded(password) + "@");
        }
        var fromApplication = applicationName.replaceAll("[^!-~]", "-");
        return Client.builder(address)
                .name(clientName != null ? clientName : fromApplication.substring(0, Math.min(64, fromApplication.length())))
                .responseTimeout(responseTimeout)
                .retryTimeout(retryTimeout)
                .replicationTimeout(replicationTimeout);
    }

    private static String encoded(String text) {
        return URLEncoder.encode(text, StandardCharsets.UTF_8).replace("+", "%20");
    }

    /** Without the password. */
    @Override
    public String toString() {
        return "RlockProperties";
    }
}
