package rlock

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// server is the servers that rlock-testserver has started. They end with their test.
type server struct {
	URL     string
	Servers []struct {
		Port, PID int
		Log       string
	}
	TLS struct{ URL, Authority string }
}

func start(t *testing.T, arguments ...string) *server {
	t.Helper()
	program := os.Getenv("RLOCK_TESTSERVER")
	if program == "" {
		program = "../../target/debug/rlock-testserver"
	}
	if len(arguments) == 0 {
		arguments = []string{"one"}
	}
	command := exec.Command(program, arguments...)
	command.Stderr = os.Stderr
	input, _ := command.StdinPipe()
	output, _ := command.StdoutPipe()
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		input.Close()
		command.Wait()
	})
	line, _ := bufio.NewReader(output).ReadBytes('\n')
	made := &server{}
	if err := json.Unmarshal(line, made); err != nil {
		t.Fatalf("%s: %v: %q", program, err, line)
	}
	return made
}

// For the tests of packages that import this one, which cannot be in this package.
type Server = server

var (
	Start, Ask, Eventually      = start, ask, eventually
	Done, Is, IsTrue            = done, is, isTrue
	Connect, IsFree             = connect, isFree
	ClosedWithTest, OfOwnModule = closedWithTest, ofOwnModule
)

func Must[T any](value T, err error) func(testing.TB) T { return must(value, err) }

func (s *server) port() int { return s.Servers[0].Port }

// pause stops the server until resume is called, or the test ends.
func (s *server) pause(t testing.TB) (resume func()) {
	syscall.Kill(s.Servers[0].PID, syscall.SIGSTOP)
	resume = sync.OnceFunc(func() { syscall.Kill(s.Servers[0].PID, syscall.SIGCONT) })
	t.Cleanup(resume)
	return resume
}

// ask sends a command in plain RESP2 on a separate connection, and returns the reply.
func ask(t testing.TB, port int, words ...string) string {
	t.Helper()
	socket, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	fmt.Fprintf(socket, "*%d\r\n", len(words))
	for _, word := range words {
		fmt.Fprintf(socket, "$%d\r\n%s\r\n", len(word), word)
	}
	socket.(*net.TCPConn).CloseWrite()
	var reply strings.Builder
	bufio.NewReader(socket).WriteTo(&reply)
	return reply.String()
}

func isFree(t testing.TB, port int, key string) bool { return ask(t, port, "EXISTS", key) == ":0\r\n" }

func isQueued(t testing.TB, port int, key string, count int) bool {
	return strings.Contains(ask(t, port, "RLOCK.INFO", key), fmt.Sprintf("queued\r\n:%d\r\n", count))
}

// connections counts the connections of clients of this package.
func connections(t testing.TB, port int) int {
	count := 0
	for line := range strings.Lines(ask(t, port, "CLIENT", "LIST")) {
		if strings.Contains(line, "lib-name=rlock-go") || strings.Contains(line, " sub=") && !strings.Contains(line, " sub=0 ") {
			count++
		}
	}
	return count
}

func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// connect creates a client, which is closed with its test.
func connect(t testing.TB, url string, options Options) *Client {
	t.Helper()
	client, err := NewClient(url, options)
	if err != nil {
		t.Fatal(err)
	}
	closedWithTest(t, client)
	return client
}

func closedWithTest(t testing.TB, opened interface{ Close(context.Context) error }) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		opened.Close(ctx)
	})
}

// ofOwnModule writes a program of a README into a module of its own, and returns the directory.
func ofOwnModule(t testing.TB, source string) string {
	t.Helper()
	directory := t.TempDir()
	module := fmt.Sprintf("module first\n\ngo 1.25.0\n\nrequire rlock v0.0.0\n\nrequire golang.org/x/sys v0.44.0 // indirect\n\nreplace rlock => %s\n",
		must(filepath.Abs("."))(t))
	for name, text := range map[string]string{
		"main.go": source, "go.mod": module, "go.sum": string(must(os.ReadFile("go.sum"))(t)),
	} {
		done(t, os.WriteFile(filepath.Join(directory, name), []byte(text), 0o600))
	}
	return directory
}

// network passes bytes on while it is enabled.
type network struct {
	url    string
	target atomic.Int64
	delay  atomic.Int64 // The delay of each piece, in nanoseconds.
	isMute atomic.Bool  // Replies are lost.
	mu     sync.Mutex
	open   map[net.Conn]bool
}

func newNetwork(t testing.TB, port int) *network {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &network{url: "redis://" + listener.Addr().String(), open: map[net.Conn]bool{}}
	n.target.Store(int64(port))
	t.Cleanup(func() {
		listener.Close()
		n.cut()
	})
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			go n.pass(near)
		}
	}()
	return n
}

func (n *network) pass(near net.Conn) {
	defer near.Close()
	far, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", n.target.Load()))
	if err != nil {
		return
	}
	defer far.Close()
	n.mu.Lock()
	n.open[near] = true
	n.mu.Unlock()
	carry := func(to, from net.Conn, isReply bool) {
		buffer := make([]byte, 64<<10)
		for {
			count, err := from.Read(buffer)
			if err != nil {
				to.Close()
				return
			}
			time.Sleep(time.Duration(n.delay.Load()))
			if !isReply || !n.isMute.Load() {
				to.Write(buffer[:count])
			}
		}
	}
	go carry(far, near, false)
	carry(near, far, true)
	n.mu.Lock()
	delete(n.open, near)
	n.mu.Unlock()
}

// cut ends all connections.
func (n *network) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for each := range n.open {
		each.Close()
	}
}

func (n *network) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.open)
}
