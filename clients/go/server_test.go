package rlock

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

var shared *server // For tests that do not harm it.

func TestMain(m *testing.M) {
	directory, err := os.MkdirTemp("", "rlock-go")
	if err != nil {
		panic(err)
	}
	shared = &server{directory: directory, port: freePort()}
	err = shared.start("--loadmodule", module())
	code := 1
	if err == nil {
		code = m.Run()
		shared.kill()
	} else {
		fmt.Fprintln(os.Stderr, err)
	}
	_ = os.RemoveAll(directory)
	os.Exit(code)
}

func module() string {
	if path := os.Getenv("RLOCK_MODULE"); path != "" {
		return path
	}
	path, err := filepath.Abs("../../target/release/librlock.so")
	if err != nil {
		panic(err)
	}
	return path
}

func freePort() int {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().(*net.TCPAddr).Port
}

type server struct {
	directory string
	port      int
	arguments []string
	process   *exec.Cmd
}

// newServer starts a server that ends with the test.
func newServer(t *testing.T, arguments ...string) *server {
	t.Helper()
	s := &server{directory: t.TempDir(), port: freePort()}
	if err := s.start(arguments...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.kill)
	return s
}

func (s *server) address() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

func (s *server) start(arguments ...string) error {
	program := os.Getenv("RLOCK_SERVER")
	if program == "" {
		program = "redis-server"
	}
	s.arguments = arguments
	s.process = exec.Command(program, append([]string{"--port", fmt.Sprint(s.port), "--bind", "127.0.0.1",
		"--dir", s.directory, "--save", "", "--logfile", filepath.Join(s.directory, "log")}, arguments...)...)
	if err := s.process.Start(); err != nil {
		return err
	}
	client := redis.NewClient(&redis.Options{Addr: s.address(), MaxRetries: -1})
	defer func() { _ = client.Close() }()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if client.Ping(context.Background()).Err() == nil {
			return nil
		}
	}
	log, _ := os.ReadFile(filepath.Join(s.directory, "log"))
	s.kill()
	return fmt.Errorf("%s %s did not start: %s", program, arguments, log)
}

func (s *server) kill() {
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
}

// connect gives a client that ends with the test.
func connect(t *testing.T, address string) *redis.Client {
	return connectWith(t, &redis.Options{Addr: address})
}

func connectWith(t *testing.T, options *redis.Options) *redis.Client {
	client := redis.NewClient(options)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// locksOf gives Locks that end with the test.
func locksOf(t *testing.T, client redis.UniversalClient) *Locks {
	t.Helper()
	locks, err := New(client)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locks.Close() })
	return locks
}

// eventually waits until something is so, for at most ten seconds.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !so(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

func lock(t *testing.T, locks *Locks, key string, options ...Option) *Held {
	t.Helper()
	held, err := locks.Lock(t.Context(), key, options...)
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	return held
}

func release(t *testing.T, held *Held) {
	t.Helper()
	if err := held.Release(); err != nil {
		t.Fatalf("%s: %v", held.Keys(), err)
	}
}

// info gives a field of RLOCK.INFO, as text.
func info(t *testing.T, client redis.UniversalClient, key, field string) string {
	t.Helper()
	cmd := redis.NewMapStringInterfaceCmd(context.Background(), "RLOCK.INFO", key)
	if err := client.Process(context.Background(), cmd); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(cmd.Val()[field])
}

func queued(t *testing.T, client redis.UniversalClient, key string, places string) {
	t.Helper()
	eventually(t, places+" places", func() bool { return info(t, client, key, "queued") == places })
}

func isFree(t *testing.T, client redis.UniversalClient, key string) {
	t.Helper()
	eventually(t, "free, and nobody queued", func() bool {
		return info(t, client, key, "mode") == "free" && info(t, client, key, "queued") == "0"
	})
}

// proxy passes everything on, but for one reply.
type proxy struct {
	address string
	mu      sync.Mutex
	word    string // The reply to the next request with this word is lost.
	hang    bool   // By silence, or by closing.
	lost    chan struct{}
}

func newProxy(t *testing.T, target string) *proxy {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	p := &proxy{address: listener.Addr().String()}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = client.Close() })
			go p.serve(client, target)
		}
	}()
	return p
}

// lose has the reply to the next request with word lost. The channel is closed when it was.
func (p *proxy) lose(word string, hang bool) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.word, p.hang, p.lost = word, hang, make(chan struct{})
	return p.lost
}

// matches says whether this is the request whose reply is to be lost, and how.
func (p *proxy) matches(request []byte) (bool, bool, chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.word == "" || !bytes.Contains(request, []byte(p.word)) {
		return false, false, nil
	}
	p.word = ""
	return true, p.hang, p.lost
}

func (p *proxy) serve(client net.Conn, target string) {
	server, err := net.Dial("tcp", target)
	if err != nil {
		_ = client.Close()
		return
	}
	armed := make(chan func() bool, 1) // What to do with the next reply; true: pass nothing on.
	go func() {
		defer func() { _, _ = client.Close(), server.Close() }()
		buffer := make([]byte, 65536)
		silent := false
		for {
			n, err := server.Read(buffer)
			if err != nil {
				return
			}
			select {
			case act := <-armed:
				silent = true
				if act() {
					return
				}
			default:
			}
			if !silent {
				if _, err := client.Write(buffer[:n]); err != nil {
					return
				}
			}
		}
	}()
	defer func() { _, _ = client.Close(), server.Close() }()
	buffer := make([]byte, 65536)
	for {
		n, err := client.Read(buffer)
		if err != nil {
			return
		}
		if lose, hang, lost := p.matches(buffer[:n]); lose {
			armed <- func() bool { close(lost); return !hang }
		}
		if _, err := server.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// calls is how often a command was run, by the server's own count.
func calls(t *testing.T, client *redis.Client, command string) string {
	t.Helper()
	stats, err := client.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(stats, "cmdstat_"+strings.ToLower(command)+":calls=")
	if !found {
		return "0"
	}
	count, _, _ := strings.Cut(rest, ",")
	return count
}

// ends waits until a holder is told that it holds nothing any more.
func ends(t *testing.T, held *Held) {
	t.Helper()
	eventually(t, "the context ends", func() bool { return held.Context().Err() != nil })
}
