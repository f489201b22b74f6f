package rlock;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;

/** Passes everything on, but for the reply to one request. */
final class Proxy implements AutoCloseable {
    private final ServerSocket listener;
    private final int target;
    private final ConcurrentLinkedQueue<Socket> sockets = new ConcurrentLinkedQueue<>();
    private String word;
    private boolean hang;
    private CountDownLatch lost = new CountDownLatch(0);

    Proxy(int target) throws IOException {
        this.target = target;
        listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        Locks.daemon(this::accept, "proxy").start();
    }

    int port() {
        return listener.getLocalPort();
    }

    /** Has the reply to the next request with word lost, by silence or by closing. The latch opens when it was. */
    synchronized CountDownLatch lose(String word, boolean hang) {
        this.word = word;
        this.hang = hang;
        lost = new CountDownLatch(1);
        return lost;
    }

    private synchronized boolean matches(String request) {
        boolean is = word != null && request.contains(word);
        if (is) {
            word = null;
        }
        return is;
    }

    private void accept() {
        while (!listener.isClosed()) {
            try {
                var client = listener.accept();
                sockets.add(client);
                var server = new Socket(InetAddress.getLoopbackAddress(), target);
                sockets.add(server);
                var silent = new boolean[1];
                Locks.daemon(() -> pump(client, server, silent, true), "proxy").start();
                Locks.daemon(() -> pump(server, client, silent, false), "proxy").start();
            } catch (IOException e) {
                continue; // The server is away, or the proxy ends.
            }
        }
    }

    private void pump(Socket from, Socket to, boolean[] silent, boolean requests) {
        var buffer = new byte[65536];
        try (from; to) {
            for (int n = from.getInputStream().read(buffer); n >= 0; n = from.getInputStream().read(buffer)) {
                synchronized (silent) {
                    if (requests && matches(new String(buffer, 0, n, StandardCharsets.ISO_8859_1))) {
                        silent[0] = true;
                    }
                    if (!requests && silent[0]) {
                        lost.countDown();
                        if (!hang) {
                            return;
                        }
                        continue;
                    }
                }
                to.getOutputStream().write(buffer, 0, n);
            }
        } catch (IOException e) {
            return; // Either side has closed.
        }
    }

    @Override
    public void close() throws IOException {
        listener.close();
        for (var socket : sockets) {
            socket.close();
        }
    }
}
