package rlock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"rlock"
	"rlock/quorum"
	"rlock/rlockhttp"
)

var _ rlockhttp.Locks = (*quorum.Quorum)(nil)

func TestLocker(t *testing.T) {
	t.Parallel()
	s := rlock.Start(t)
	var logged bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelWarn}))
	options := rlock.Options{RetryTimeout: 200 * time.Millisecond, ResponseTimeout: 200 * time.Millisecond}
	client, other := rlock.Connect(t, s.URL, rlock.Options{Logger: logger}), rlock.Connect(t, s.URL, options)
	// Goroutines of two processes, and what a lost update would show.
	counter, group := 0, sync.WaitGroup{}
	for _, each := range []sync.Locker{client.Locker("k"), other.Locker("k")} {
		for range 10 {
			group.Go(func() {
				for range 10 {
					each.Lock()
					counter++
					each.Unlock()
				}
			})
		}
	}
	group.Wait()
	rlock.IsTrue(t, counter == 200, counter)

	lock := client.Locker("k")
	rlock.IsTrue(t, fmt.Sprint(panics(lock.Unlock)) == "rlock: Unlock of k, which is not locked")
	// A loss, and a goroutine that waits meanwhile: it gets the lock when the other one has noticed.
	lock.Lock()
	waits := make(chan any, 1)
	go func() {
		waits <- panics(func() {
			lock.Lock()
			lock.Unlock()
		})
	}()
	rlock.Ask(t, s.Servers[0].Port, "RLOCK.FORCE", "k")
	rlock.Eventually(t, "the loss", func() bool { return client.Locker("k") != nil && rlock.IsFree(t, s.Servers[0].Port, "k") })
	rlock.Is(t, panics(lock.Unlock).(error), rlock.ErrLost)
	rlock.IsTrue(t, <-waits == nil)
	ignores := client.Locker("k", rlock.IgnoreLoss())
	ignores.Lock()
	rlock.Ask(t, s.Servers[0].Port, "RLOCK.FORCE", "k")
	ignores.Unlock()
	// A refusal leaves it as it was.
	rlock.Ask(t, s.Servers[0].Port, "SET", "text", "is no lock")
	refused := client.Locker("text")
	for range 2 {
		rlock.Is(t, panics(refused.Lock).(error), rlock.ErrNotALock)
	}
	lock.Lock()
	rlock.Is(t, panics(other.Locker("k", rlock.Wait(time.Millisecond)).Lock).(error), rlock.ErrNotAcquired)
	// No server answers the release.
	silent := other.Locker("silent")
	silent.Lock()
	syscall.Kill(s.Servers[0].PID, syscall.SIGSTOP)
	rlock.IsTrue(t, panics(silent.Unlock) == nil)
	syscall.Kill(s.Servers[0].PID, syscall.SIGCONT)
	// The client is closed meanwhile.
	rlock.Done(t, client.Close(background))
	rlock.IsTrue(t, panics(lock.Unlock) == nil)
	rlock.Is(t, panics(lock.Lock).(error), rlock.ErrClosed)
	rlock.IsTrue(t, strings.Contains(logged.String(), "k: not released"), logged.String())
}

func panics(f func()) (with any) {
	defer func() { with = recover() }()
	f()
	return nil
}

func TestHandler(t *testing.T) {
	t.Parallel()
	s := rlock.Start(t)
	options := rlock.Options{RetryTimeout: 300 * time.Millisecond, ResponseTimeout: 300 * time.Millisecond}
	client, other := rlock.Connect(t, s.URL, options), rlock.Connect(t, s.URL, options)
	work := func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, rlockhttp.Hold(r.Context()).Fence()) }
	key := func(r *http.Request) string { return r.PathValue("key") }
	mux := http.NewServeMux()
	handle := func(path string, work http.HandlerFunc, options ...rlock.Option) {
		mux.Handle(path+"/{key...}", rlockhttp.Handler(client, key, work, options...))
	}
	causes := make(chan error, 1)
	handle("/now", work)
	handle("/wait", work, rlock.Wait(500*time.Millisecond))
	handle("/long", work, rlock.Wait(time.Hour))
	handle("/panic", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	handle("/lost", func(w http.ResponseWriter, r *http.Request) {
		rlock.Ask(t, s.Servers[0].Port, "RLOCK.FORCE", r.PathValue("key"))
		<-r.Context().Done()
		causes <- context.Cause(r.Context())
		w.WriteHeader(http.StatusTeapot)
	})
	web := httptest.NewServer(mux)
	t.Cleanup(web.Close)
	get := func(path string) (int, string) {
		answer, err := http.Get(web.URL + path)
		if err != nil {
			return 0, err.Error()
		}
		defer answer.Body.Close()
		return answer.StatusCode, string(rlock.Must(io.ReadAll(answer.Body))(t))
	}
	status, body := get("/now/k")
	rlock.IsTrue(t, status == 200 && len(body) == 16 && rlock.IsFree(t, s.Servers[0].Port, "k"), status, body)
	hold := rlock.Must(other.Lock(background, "k"))(t)
	for _, path := range []string{"/now/k", "/wait/k"} {
		status, body = get(path)
		rlock.IsTrue(t, status == 409 && body == "Conflict\n", status, body)
	}
	// A caller that leaves ends the wait.
	ctx, cancel := context.WithTimeout(background, 50*time.Millisecond)
	_, err := http.DefaultClient.Do(rlock.Must(http.NewRequestWithContext(ctx, "GET", web.URL+"/long/k", nil))(t))
	cancel()
	rlock.IsTrue(t, errors.Is(err, context.DeadlineExceeded), err)
	rlock.Eventually(t, "nobody waits", func() bool {
		return strings.Contains(rlock.Ask(t, s.Servers[0].Port, "RLOCK.INFO", "k"), "queued\r\n:0\r\n")
	})
	time.AfterFunc(100*time.Millisecond, func() { hold.Release(background) })
	status, body = get("/wait/k")
	rlock.IsTrue(t, status == 200, status, body)
	status, _ = get("/panic/k")
	rlock.IsTrue(t, status == 0 && rlock.IsFree(t, s.Servers[0].Port, "k"), status)
	status, _ = get("/lost/k")
	rlock.Is(t, <-causes, rlock.ErrLost)
	rlock.IsTrue(t, status == http.StatusTeapot, status)
	status, body = get("/now/")
	rlock.IsTrue(t, status == 500 && body == "Internal Server Error\n", status, body)
	rlock.IsTrue(t, rlockhttp.Hold(background) == nil)
	// The server hangs, then it is gone.
	for _, signal := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
		syscall.Kill(s.Servers[0].PID, signal)
		for _, path := range []string{"/now/k", "/wait/k"} {
			began := time.Now()
			status, body = get(path)
			t.Log(signal, path, status, time.Since(began))
			rlock.IsTrue(t, status == 503 && body == "Service Unavailable\n", signal, path, status, body)
		}
	}
}

// The program of the README runs unchanged, in a module of its own.
func TestReadmeOfHandlers(t *testing.T) {
	t.Parallel()
	s := rlock.Start(t)
	listener := rlock.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	address := listener.Addr().String()
	listener.Close()
	readme := rlock.Must(os.ReadFile("rlockhttp/README.md"))(t)
	source := string(regexp.MustCompile("(?s)```go\n(.*?)```").FindSubmatch(readme)[1])
	program := strings.NewReplacer("redis://127.0.0.1:6379", s.URL, "127.0.0.1:8080", address).Replace(source)
	directory := rlock.OfOwnModule(t, program)
	build := exec.Command("go", "build", "-race", "-o", "first", ".") // As in TestReadme.
	build.Dir = directory
	output, err := build.CombinedOutput()
	rlock.IsTrue(t, err == nil, err, string(output))
	server := exec.Command(filepath.Join(directory, "first"))
	rlock.Done(t, server.Start())
	t.Cleanup(func() {
		server.Process.Kill()
		server.Wait()
	})
	rlock.Eventually(t, "it answers", func() bool {
		answer, err := http.Post("http://"+address+"/invoices/7", "", nil)
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		body := string(rlock.Must(io.ReadAll(answer.Body))(t))
		rlock.IsTrue(t, answer.StatusCode == 200 && strings.HasPrefix(body, "paid under fence "), answer.Status, body)
		return true
	})
}
