package rlock;

import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.SocketChannel;
import java.security.GeneralSecurityException;
import java.security.cert.CertPathBuilderException;
import java.security.cert.CertificateException;
import java.security.cert.X509Certificate;
import java.util.ArrayDeque;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLEngine;
import javax.net.ssl.SSLEngineResult.HandshakeStatus;
import javax.net.ssl.SSLEngineResult.Status;
import javax.net.ssl.SSLException;
import javax.net.ssl.TrustManager;
import javax.net.ssl.X509TrustManager;
import rlock.Engine.Writer;

/** A non-blocking connection to a server. Only the client's thread uses it. */
final class Connection {
    private static final ByteBuffer NOTHING = ByteBuffer.allocate(0);

    private final Client client;
    private final Format.Action to;
    /** The bytes to write, before and after encryption. */
    private final ArrayDeque<ByteBuffer> plain = new ArrayDeque<>();
    private final ArrayDeque<ByteBuffer> output = new ArrayDeque<>();
    private final ByteBuffer input = ByteBuffer.allocate(32 << 10);
    private ByteBuffer opened = ByteBuffer.allocate(32 << 10);
    private SocketChannel channel;
    private SelectionKey key;
    private SSLEngine tls;
    private boolean isOpen;
    /** Whether it only ends what it has begun to write, and passes nothing on. */
    private boolean isLeaving;
    private boolean isClosed;

    Connection(Client client, Format.Action to) {
        this.client = client;
        this.to = to;
        // Looking up a name may take long.
        Client.daemon("resolver", () -> {
            var address = new InetSocketAddress(to.host, to.port);
            client.post(() -> connect(address));
        }).start();
    }

    long number() {
        return to.connection;
    }

    void write(ByteBuffer bytes) {
        plain.add(bytes);
        client.writes(this);
    }

    void close() {
        isClosed = true;
        try {
            if (channel != null) {
                channel.close();
            }
        } catch (IOException alreadyGone) {
            // It is closed in any case.
        }
    }

    boolean isClosed() {
        return isClosed;
    }

    /** Ends its own side once everything is written, and is closed once the server has ended the other one. */
    void leave() {
        attempt(() -> {
            if (!isOpen) {
                close();
                return;
            }
            isLeaving = true;
            if (tls != null) {
                tls.closeOutbound();
                while (tls.getHandshakeStatus() == HandshakeStatus.NEED_WRAP) {
                    wrap(NOTHING);
                }
            }
            client.writes(this);
        });
    }

    private interface Work {
        void run() throws IOException;
    }

    /** Runs {@code work} unless the connection has ended. If that fails, it closes the connection and notifies the engine. */
    private void attempt(Work work) {
        if (isClosed) {
            return;
        }
        try {
            work.run();
        } catch (IOException | RuntimeException error) {
            close();
            var isCertificate = false;
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                isCertificate |= cause instanceof CertificateException || cause instanceof CertPathBuilderException;
            }
            var text = to.host + ":" + to.port + ": " + error.getMessage();
            var fault = isCertificate ? Format.FAULT_CERTIFICATE : Format.FAULT_IO;
            client.notify(this, Format.ended(new Writer(), number(), fault, text), true);
        }
    }

    private void connect(InetSocketAddress address) {
        attempt(() -> {
            if (to.how == Format.TRANSPORT_UNIX) {
                throw new IOException("Unix sockets are not supported here");
            }
            if (address.isUnresolved()) {
                throw new IOException("the name is not known");
            }
            channel = SocketChannel.open();
            channel.configureBlocking(false);
            channel.socket().setTcpNoDelay(true);
            key = channel.register(client.selector(), SelectionKey.OP_CONNECT, this);
            if (channel.connect(address)) {
                isConnected();
            }
        });
    }

    private void isConnected() throws IOException {
        key.interestOps(SelectionKey.OP_READ);
        if (to.how == Format.TRANSPORT_TCP) {
            isOpened();
            return;
        }
        tls = (to.how == Format.TRANSPORT_INSECURE ? trusting() : client.tls()).createSSLEngine(to.host, to.port);
        tls.setUseClientMode(true);
        if (to.how == Format.TRANSPORT_TLS) {
            var parameters = tls.getSSLParameters();
            parameters.setEndpointIdentificationAlgorithm("HTTPS");
            tls.setSSLParameters(parameters);
        }
        tls.beginHandshake();
        client.writes(this);
    }

    private void isOpened() {
        isOpen = true;
        client.notify(this, Format.opened(new Writer(), number()), false);
    }

    void isReady() {
        attempt(() -> {
            if (key.isConnectable() && channel.finishConnect()) {
                isConnected();
            }
            if (key.isValid() && key.isReadable()) {
                var count = channel.read(input);
                if (isLeaving) {
                    input.clear();
                } else if (tls != null) {
                    secure();
                } else if (count > 0) {
                    received(input);
                }
                if (count < 0) {
                    throw new IOException("the connection was closed");
                }
            }
            if (key.isValid() && key.isWritable()) {
                client.writes(this);
            }
        });
    }

    private void received(ByteBuffer bytes) {
        var event = Format.received(new Writer(), number(), bytes.flip());
        bytes.clear();
        client.notify(this, event, false);
    }

    /** Writes as much as the socket accepts now. */
    void flush() {
        attempt(() -> {
            if (tls != null && !isLeaving) {
                secure();
            } else if (tls == null && isOpen) {
                output.addAll(plain);
                plain.clear();
            }
            while (!output.isEmpty()) {
                channel.write(output.peek());
                if (output.peek().hasRemaining()) {
                    break;
                }
                output.poll();
            }
            key.interestOps(output.isEmpty() ? SelectionKey.OP_READ : SelectionKey.OP_READ | SelectionKey.OP_WRITE);
            if (isLeaving && output.isEmpty()) {
                channel.shutdownOutput();
            }
        });
    }

    /** Continues the handshake, decrypts input, and encrypts output. */
    private void secure() throws IOException {
        while (!isClosed) {
            switch (tls.getHandshakeStatus()) {
                case NEED_TASK:
                    for (Runnable task; (task = tls.getDelegatedTask()) != null;) {
                        task.run();
                    }
                    break;
                case NEED_WRAP:
                    wrap(NOTHING);
                    break;
                case NEED_UNWRAP:
                    if (!unwrap()) {
                        return;
                    }
                    break;
                default:
                    if (!isOpen) {
                        isOpened();
                    }
                    if (unwrap()) {
                        break;
                    }
                    if (plain.isEmpty()) {
                        return;
                    }
                    wrap(plain.poll());
            }
        }
    }

    private void wrap(ByteBuffer bytes) throws SSLException {
        do {
            var sealed = ByteBuffer.allocate(tls.getSession().getPacketBufferSize());
            if (tls.wrap(bytes, sealed).getStatus() == Status.CLOSED && !isLeaving) {
                throw new SSLException("the connection was closed");
            }
            output.add(sealed.flip());
        } while (bytes.hasRemaining());
        client.writes(this);
    }

    /** Decrypts one record; false if none is complete. */
    private boolean unwrap() throws SSLException {
        input.flip();
        var status = tls.unwrap(input, opened).getStatus();
        input.compact();
        switch (status) {
            case BUFFER_UNDERFLOW:
                return false;
            case BUFFER_OVERFLOW:
                opened = ByteBuffer.allocate(2 * opened.capacity());
                return true;
            case CLOSED:
                throw new SSLException("the connection was closed");
            default:
                if (opened.position() > 0) {
                    received(opened);
                }
                return true;
        }
    }

    /** For {@code insecure=1} only. */
    private static SSLContext trusting() throws SSLException {
        var all = new X509TrustManager() {
            @Override
            public void checkClientTrusted(X509Certificate[] chain, String kind) {}

            @Override
            public void checkServerTrusted(X509Certificate[] chain, String kind) {}

            @Override
            public X509Certificate[] getAcceptedIssuers() {
                return new X509Certificate[0];
            }
        };
        try {
            var context = SSLContext.getInstance("TLS");
            context.init(null, new TrustManager[] {all}, null);
            return context;
        } catch (GeneralSecurityException error) {
            throw new SSLException(error);
        }
    }
}
