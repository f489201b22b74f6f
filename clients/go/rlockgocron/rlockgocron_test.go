package rlockgocron

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"

	"rlock"
)

const period = time.Second

var background = context.Background()

// TestMain is also the program of an instance: a scheduler with one job, which prints the time and the fence of each run.
func TestMain(m *testing.M) {
	if kind := os.Getenv("RLOCK_INSTANCE"); kind != "" {
		instance(kind)
	}
	os.Exit(m.Run())
}

// instance runs a job at each tick, this instance's ticks a while after whole seconds.
func instance(kind string) {
	duration := func(name string) time.Duration {
		d, err := time.ParseDuration(os.Getenv(name))
		if err != nil {
			panic(err)
		}
		return d
	}
	client := must(rlock.NewClient(os.Getenv("RLOCK_URL"), rlock.Options{}))
	var option gocron.SchedulerOption
	var fence func() uint64
	if kind == "locker" {
		locker := must(NewLocker(client, "lock:", duration("LEAST"), rlock.Lease(duration("LEASE"))))
		option, fence = gocron.WithDistributedLocker(locker), func() uint64 { return locker.Hold("job").Fence() }
	} else {
		elector := NewElector(client, "lock:leader", "", rlock.Lease(duration("LEASE")))
		option, fence = gocron.WithDistributedElector(elector), func() uint64 {
			if leadership := elector.Leadership(); leadership != nil {
				return leadership.Fence()
			}
			return 0 // Lost since the tick.
		}
	}
	scheduler := must(gocron.NewScheduler(option))
	first := time.Now().Truncate(period).Add(2*period + duration("SHIFT"))
	work := func() {
		fmt.Println("run", time.Now().UnixMilli(), fence())
		time.Sleep(duration("WORK"))
	}
	must(scheduler.NewJob(gocron.DurationJob(period), gocron.NewTask(work), gocron.WithName("job"),
		gocron.WithStartAt(gocron.WithStartDateTime(first))))
	scheduler.Start()
	io.Copy(io.Discard, os.Stdin) // Ends with the test.
	os.Exit(0)
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// run is one run of the job.
type run struct {
	name  string
	at    time.Time
	fence uint64
}

// instances are processes that share the job. A process is stopped and killed by its name.
type instances struct {
	t         *testing.T
	mu        sync.Mutex
	runs      []run
	processes map[string]*os.Process
}

func (i *instances) start(name, kind, url string, settings ...string) {
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), append([]string{
		"RLOCK_INSTANCE=" + kind, "RLOCK_URL=" + url, "LEAST=500ms", "LEASE=2s", "SHIFT=0s", "WORK=2ms",
	}, settings...)...)
	command.Stderr = os.Stderr
	input, output := must(command.StdinPipe()), must(command.StdoutPipe())
	if err := command.Start(); err != nil {
		i.t.Fatal(err)
	}
	i.processes[name] = command.Process
	var read sync.WaitGroup
	read.Go(func() {
		for lines := bufio.NewScanner(output); lines.Scan(); {
			r, at := run{name: name}, int64(0)
			if _, err := fmt.Sscanf(lines.Text(), "run %d %d", &at, &r.fence); err != nil {
				i.t.Error(lines.Text())
			}
			r.at = time.UnixMilli(at)
			i.mu.Lock()
			i.runs = append(i.runs, r)
			i.mu.Unlock()
		}
	})
	i.t.Cleanup(func() {
		input.Close()
		command.Process.Signal(syscall.SIGCONT)
		read.Wait()
		command.Wait()
	})
}

func (i *instances) signal(name string, signal syscall.Signal) time.Time {
	if err := i.processes[name].Signal(signal); err != nil {
		i.t.Fatal(err)
	}
	return time.Now()
}

// since returns the runs that began later; of one instance, or of all with an empty name.
func (i *instances) since(at time.Time, name string) (runs []run) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, r := range i.runs {
		if !r.at.Before(at) && (name == "" || r.name == name) {
			runs = append(runs, r)
		}
	}
	return runs
}

func (i *instances) eventually(what string, count int, since time.Time, name string) run {
	i.t.Helper()
	eventually(i.t, what, func() bool { return len(i.since(since, name)) >= count })
	return i.since(since, name)[count-1]
}

// oncePerTick fails unless each tick from the first run to the last one has one run, and returns their number.
func oncePerTick(t *testing.T, runs []run) int {
	t.Helper()
	ticks := map[int64][]run{}
	for _, r := range runs {
		tick := r.at.Unix()
		ticks[tick] = append(ticks[tick], r)
	}
	for tick := runs[0].at.Unix(); tick <= runs[len(runs)-1].at.Unix(); tick++ {
		if len(ticks[tick]) != 1 {
			t.Errorf("tick %d: %v", tick, ticks[tick])
		}
	}
	return len(ticks)
}

func startInstances(t *testing.T, kind, url string, settings ...string) *instances {
	i := &instances{t: t, processes: map[string]*os.Process{}}
	// A second of the clock has both ticks of the two instances.
	i.start("a", kind, url, append(settings, "SHIFT=200ms")...)
	i.start("b", kind, url, append(settings, "SHIFT=500ms")...)
	return i
}

// The ticks of two instances are 300 ms apart. RLOCK_SECONDS is how long they run.
func TestATickRunsOnce(t *testing.T) {
	t.Parallel()
	seconds := 10
	if text := os.Getenv("RLOCK_SECONDS"); text != "" {
		seconds = must(strconv.Atoi(text))
	}
	i := startInstances(t, "locker", start(t).URL)
	began := time.Now()
	i.eventually("a run each second", seconds, began, "")
	t.Logf("%d runs in %d ticks", len(i.since(began, "")), oncePerTick(t, i.since(began, "")))
}

// What the least time is for.
func TestWithoutALeastTimeATickRunsTwice(t *testing.T) {
	t.Parallel()
	i := startInstances(t, "locker", start(t).URL, "LEAST=0s")
	i.eventually("four runs of a", 4, time.Time{}, "a")
	i.eventually("four runs of b", 4, time.Time{}, "b")
}

// The lock of an instance that is killed during a job ends with its lease.
func TestAnInstanceIsKilledDuringAJob(t *testing.T) {
	t.Parallel()
	i := startInstances(t, "locker", start(t).URL, "WORK=1h")
	first := i.eventually("a run", 1, time.Time{}, "")
	other := map[string]string{"a": "b", "b": "a"}[first.name]
	time.Sleep(4 * time.Second) // Two leases, which are renewed.
	if runs := i.since(time.Time{}, ""); len(runs) != 1 {
		t.Fatal(runs)
	}
	killed := i.signal(first.name, syscall.SIGKILL)
	next := i.eventually("the other one runs", 1, killed, other)
	if next.fence <= first.fence || next.at.Sub(killed) > 2*time.Second+2*period {
		t.Error(first, next)
	}
	t.Logf("killed, and the next run %v later", next.at.Sub(killed))
}

func TestAnInstanceIsKilledBetweenJobs(t *testing.T) {
	t.Parallel()
	s := start(t)
	i := startInstances(t, "locker", s.URL)
	i.eventually("runs", 3, time.Time{}, "")
	eventually(t, "the job is over: what is left is the least time, and no lease", func() bool {
		return timeLeft(t, s.port(), "lock:job") <= 500*time.Millisecond
	})
	killed := i.signal("a", syscall.SIGKILL)
	i.eventually("runs of the other one", 4, killed, "b")
	oncePerTick(t, i.since(time.Time{}, ""))
}

// The leader is stopped for longer than its lease, then killed: each time the other one leads.
func TestALeaderIsStoppedAndItsSuccessorIsKilled(t *testing.T) {
	t.Parallel()
	i := startInstances(t, "elector", start(t).URL, "LEASE=1s")
	leader := i.eventually("runs", 2, time.Time{}, "").name
	other := map[string]string{"a": "b", "b": "a"}[leader]
	if len(i.since(time.Time{}, other)) != 0 {
		t.Fatal(i.runs)
	}
	stopped := i.signal(leader, syscall.SIGSTOP)
	next := i.eventually("the other one leads", 1, stopped, other)
	t.Logf("stopped, and the next run %v later", next.at.Sub(stopped))
	i.eventually("it continues", 2, stopped, other)
	continued := i.signal(leader, syscall.SIGCONT)
	i.eventually("it still leads", 3, continued, other)
	if runs := i.since(stopped, leader); len(runs) != 0 {
		t.Errorf("the former leader ran: %v", runs)
	}
	oncePerTick(t, i.since(next.at, ""))
	killed := i.signal(other, syscall.SIGKILL)
	last := i.eventually("the first one leads again", 1, killed, leader)
	t.Logf("killed, and the next run %v later", last.at.Sub(killed))
	if last.fence <= next.fence {
		t.Error(next, last)
	}
	i.eventually("it continues", 2, killed, leader)
}

func TestTheServerForgetsTheLeader(t *testing.T) {
	t.Parallel()
	s := start(t)
	i := startInstances(t, "elector", s.URL)
	i.eventually("runs", 3, time.Time{}, "")
	killed := time.Now()
	s.kill(t)
	startAgain(t, s.port())
	next := i.eventually("one of them leads", 4, killed, "")
	t.Logf("the fourth run %v after the server was killed", next.at.Sub(killed))
	i.eventually("and continues", 4, next.at, "")
	oncePerTick(t, i.since(next.at, ""))
}

func TestTheElectorCampaignsAgain(t *testing.T) {
	logged := log(t)
	s := start(t)
	client := connect(t, s.URL)
	elector := NewElector(client, "k", "10.0.0.1:80")
	leads := func() bool { return elector.IsLeader(background) == nil }
	eventually(t, "it leads", leads)
	first := elector.Leadership()
	ask(t, s.port(), "RLOCK.FORCE", "k")
	eventually(t, "the loss", func() bool { return !leads() })
	if err := elector.IsLeader(background); !errors.Is(err, ErrNotLeader) && !errors.Is(err, rlock.ErrLost) {
		t.Error(err)
	}
	eventually(t, "it leads again", leads)
	ask(t, s.port(), "RLOCK.FORCE", "k")
	eventually(t, "both losses are logged", func() bool { return strings.Count(logged(), "k: the lock was lost") == 2 })
	eventually(t, "it leads again", leads)
	if leader := must(client.Election("k").Leader(background)); leader.Fence <= first.Fence() || leader.Value != "10.0.0.1:80" {
		t.Error(leader)
	}
	// Errors that repeat are logged once.
	ask(t, s.port(), "SET", "text", "is no lock")
	fails := NewElector(client, "text", "")
	eventually(t, "a warning", func() bool { return strings.Contains(logged(), "text") })
	time.Sleep(2 * pause)
	if strings.Count(logged(), "key 'text'") != 1 || fails.IsLeader(background) != ErrNotLeader {
		t.Error(logged())
	}
	for _, each := range []*Elector{elector, fails, fails} {
		if err := each.Close(background); err != nil {
			t.Error(err)
		}
	}
	if leads() || ask(t, s.port(), "EXISTS", "k") != ":0\r\n" {
		t.Error("it has not resigned")
	}
	ended := NewElector(client, "k", "")
	eventually(t, "it leads", func() bool { return ended.IsLeader(background) == nil })
	client.Close(background)
	<-ended.ended // Without Close.
}

func TestTheLocker(t *testing.T) {
	logged := log(t)
	s := start(t)
	client := connect(t, s.URL)
	for _, least := range []time.Duration{-1, 30*24*time.Hour + 1} {
		if _, err := NewLocker(client, "lock:", least); err == nil {
			t.Error(least)
		}
	}
	locker := must(NewLocker(client, "lock:", 0))
	scheduler := must(gocron.NewScheduler(gocron.WithDistributedLocker(locker)))
	began, ended, causes := make(chan bool), make(chan bool), make(chan error, 1)
	job := must(scheduler.NewJob(gocron.DurationJob(time.Hour), gocron.NewTask(func() {
		hold := locker.Hold("job")
		began <- true
		select {
		case <-hold.Context().Done():
			causes <- context.Cause(hold.Context())
		case <-ended:
		}
	}), gocron.WithName("job")))
	scheduler.Start()
	// A loss.
	done(t, job.RunNow())
	<-began
	ask(t, s.port(), "RLOCK.FORCE", "lock:job")
	if err := <-causes; !errors.Is(err, rlock.ErrLost) {
		t.Error(err)
	}
	eventually(t, "a warning", func() bool { return strings.Contains(logged(), "the lock of a job was lost") })
	if locker.Hold("job") != nil {
		t.Error("a hold without a run")
	}
	// The scheduler stops during a job: its lock is free when Shutdown has returned.
	done(t, job.RunNow())
	<-began
	time.AfterFunc(50*time.Millisecond, func() { close(ended) })
	done(t, scheduler.Shutdown())
	if ask(t, s.port(), "EXISTS", "lock:job") != ":0\r\n" {
		t.Error("the lock is taken")
	}
	// Two with one name; a least time that is longer than the default lease outlives an instance that is killed.
	held := must(must(NewLocker(client, "lock:", time.Minute)).Lock(background, "job"))
	if _, err := locker.Lock(background, "job"); !errors.Is(err, rlock.ErrNotAcquired) {
		t.Error(err)
	}
	for range 2 {
		if left := timeLeft(t, s.port(), "lock:job"); left < 50*time.Second {
			t.Error(left)
		}
		done(t, held.Unlock(background))
	}
	// What is no refusal is logged.
	ask(t, s.port(), "SET", "lock:text", "is no lock")
	if _, err := locker.Lock(background, "text"); !errors.Is(err, rlock.ErrNotALock) || !strings.Contains(logged(), "a tick is skipped") {
		t.Error(err, logged())
	}
}

// The programs of README run unchanged, in a module of their own.
func TestReadme(t *testing.T) {
	t.Parallel()
	s := start(t)
	readme := string(must(os.ReadFile("README.md")))
	programs := regexp.MustCompile("(?s)```go\n(package main.*?)```").FindAllStringSubmatch(readme, -1)
	if len(programs) != 2 {
		t.Fatal(len(programs))
	}
	here := must(filepath.Abs("."))
	for _, program := range programs {
		directory := t.TempDir()
		module := fmt.Sprintf("module first\n\ngo 1.25.0\n\nrequire rlock/rlockgocron v0.0.0\n\nreplace rlock => %s\n\n"+
			"replace rlock/rlockgocron => %s\n", filepath.Dir(here), here)
		for name, text := range map[string]string{
			"main.go": strings.ReplaceAll(program[1], "redis://127.0.0.1:6379", s.URL), "go.mod": module,
			"go.sum": string(must(os.ReadFile("go.sum"))),
		} {
			done(t, os.WriteFile(filepath.Join(directory, name), []byte(text), 0o600))
		}
		for _, arguments := range [][]string{{"mod", "tidy"}, {"build", "-race", "-o", "first"}} {
			command := exec.Command("go", arguments...)
			command.Dir = directory
			if output, err := command.CombinedOutput(); err != nil {
				t.Fatal(err, string(output))
			}
		}
		command := exec.Command(filepath.Join(directory, "first"))
		command.Stderr = os.Stderr
		output := must(command.StdoutPipe())
		done(t, command.Start())
		line, _ := bufio.NewReader(output).ReadString('\n')
		done(t, command.Process.Signal(os.Interrupt))
		if err := command.Wait(); err != nil || !strings.Contains(line, "under fence ") {
			t.Error(err, line)
		}
	}
}

// server is a server of rlock-testserver, which ends with its test.
type server struct {
	URL     string
	Servers []struct{ Port, PID int }
}

func start(t *testing.T) *server {
	t.Helper()
	program := os.Getenv("RLOCK_TESTSERVER")
	if program == "" {
		program = "../../../target/debug/rlock-testserver"
	}
	command := exec.Command(program, "one")
	command.Stderr = os.Stderr
	input, output := must(command.StdinPipe()), must(command.StdoutPipe())
	done(t, command.Start())
	t.Cleanup(func() {
		input.Close()
		command.Wait()
	})
	line, _ := bufio.NewReader(output).ReadBytes('\n')
	made := &server{}
	done(t, json.Unmarshal(line, made))
	return made
}

func (s *server) port() int { return s.Servers[0].Port }

func (s *server) kill(t *testing.T) {
	done(t, syscall.Kill(s.Servers[0].PID, syscall.SIGKILL))
	eventually(t, "it is dead", func() bool {
		_, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", s.port()))
		return err != nil
	})
}

// startAgain starts an empty server at a port.
func startAgain(t *testing.T, port int) {
	program, module := os.Getenv("RLOCK_SERVER"), os.Getenv("RLOCK_MODULE")
	if program == "" {
		program = "redis-server"
	}
	if module == "" {
		module = must(filepath.Abs("../../../target/release/librlock.so"))
	}
	command := exec.Command(program, "--port", strconv.Itoa(port), "--save", "", "--loadmodule", module)
	command.Dir = t.TempDir()
	done(t, command.Start())
	t.Cleanup(func() {
		command.Process.Kill()
		command.Wait()
	})
}

func connect(t *testing.T, url string) *rlock.Client {
	client := must(rlock.NewClient(url, rlock.Options{}))
	t.Cleanup(func() { client.Close(background) })
	return client
}

// ask sends a command in plain RESP2 on a separate connection, and returns the reply.
func ask(t *testing.T, port int, words ...string) string {
	t.Helper()
	socket, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	done(t, err)
	defer socket.Close()
	fmt.Fprintf(socket, "*%d\r\n", len(words))
	for _, word := range words {
		fmt.Fprintf(socket, "$%d\r\n%s\r\n", len(word), word)
	}
	socket.(*net.TCPConn).CloseWrite()
	return string(must(io.ReadAll(socket)))
}

func timeLeft(t *testing.T, port int, key string) time.Duration {
	milliseconds := must(strconv.Atoi(strings.Trim(ask(t, port, "PTTL", key), ":\r\n")))
	return time.Duration(milliseconds) * time.Millisecond
}

func done(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within two minutes: %s", what)
		}
	}
}

// log returns a function that returns what slog.Default has logged since, in tests that are not parallel.
func log(t *testing.T) func() string {
	before, text, mu := slog.Default(), &bytes.Buffer{}, &sync.Mutex{}
	slog.SetDefault(slog.New(slog.NewTextHandler(writer(func(bytes []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return text.Write(bytes)
	}), nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return text.String()
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(bytes []byte) (int, error) { return w(bytes) }
