package rlock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"rlock"
	"rlock/quorum"
)

// How long a member grants nothing after its start, and the longest lease.
const grace = 1500 * time.Millisecond

var background = context.Background()

// members are servers for a quorum, which grant already.
type members []*rlock.Server

func startMembers(t *testing.T, count int) (m members) {
	for range count {
		m = append(m, rlock.Start(t, "one", "--module-arguments", fmt.Sprint("startup-grace-ms ", grace.Milliseconds())))
	}
	for i := range m {
		rlock.Eventually(t, "it grants", func() bool {
			return strings.Contains(m.ask(t, i, "INFO", "rlock"), "rlock_grace_left_ms:0\r\n")
		})
	}
	return m
}

func (m members) urls() (urls []string) {
	for _, member := range m {
		urls = append(urls, member.URL)
	}
	return urls
}

func (m members) ask(t testing.TB, member int, words ...string) string {
	return rlock.Ask(t, m[member].Servers[0].Port, words...)
}

func (m members) hold(t testing.TB, member int, key string) bool {
	return m.ask(t, member, "EXISTS", key) == ":1\r\n"
}

// untouched waits until nobody holds a key or waits for it, at any of them.
func (m members) untouched(t testing.TB, key string) {
	for i := range m {
		rlock.Eventually(t, "it is free", func() bool { return !m.hold(t, i, key) })
	}
}

func (m members) signal(member int, signal syscall.Signal) {
	syscall.Kill(m[member].Servers[0].PID, signal)
}

// restart starts a killed member again, at its port. It has forgotten everything.
func (m members) restart(t *testing.T, member int) {
	program := os.Getenv("RLOCK_SERVER")
	if program == "" {
		program = "redis-server"
	}
	directory := filepath.Dir(m[member].Servers[0].Log)
	command := exec.Command(program, filepath.Join(directory, "server.conf"))
	command.Dir = directory
	rlock.Done(t, command.Start())
	t.Cleanup(func() {
		command.Process.Kill()
		command.Wait()
	})
}

// open creates a quorum, which is closed with its test.
func open(t testing.TB, urls []string, options rlock.Options, more ...quorum.Option) *quorum.Quorum {
	t.Helper()
	q := rlock.Must(quorum.New(urls, options, more...))(t)
	rlock.ClosedWithTest(t, q)
	return q
}

func TestQuorum(t *testing.T) {
	t.Parallel()
	m := startMembers(t, 3)
	a, b := open(t, m.urls(), rlock.Options{Name: "a"}), open(t, m.urls(), rlock.Options{})
	rlock.Done(t, a.Connect(background))
	lease := rlock.Lease(grace)
	hold := rlock.Must(a.Lock(background, "k", lease))(t)
	for i := range m {
		rlock.Eventually(t, "all hold it", func() bool { return strings.Contains(m.ask(t, i, "RLOCK.INFO", "k"), hold.Owner()) })
	}
	rlock.IsTrue(t, strings.HasPrefix(hold.Owner(), "a:") && hold.Remaining() > 0 && hold.Remaining() <= grace, hold.Remaining())
	_, err := b.TryLock(background, "k", lease)
	rlock.Is(t, err, rlock.ErrNotAcquired)
	_, err = b.Lock(background, "k", lease, rlock.Wait(300*time.Millisecond))
	rlock.Is(t, err, rlock.ErrNotAcquired)
	short, cancel := context.WithTimeout(background, 20*time.Millisecond)
	defer cancel()
	_, err = b.Lock(short, "k", lease)
	rlock.Is(t, err, context.DeadlineExceeded)

	rlock.Done(t, hold.Extend(background, grace))
	rlock.Is(t, hold.Extend(background, grace+time.Millisecond), rlock.ErrMember)
	for _, call := range []func() error{
		func() error { return hold.Downgrade(background) },
		func() error { return hold.Upgrade(background) },
	} {
		rlock.Is(t, call(), rlock.ErrOutOfRange)
	}
	for _, option := range []rlock.Option{rlock.Shared(), rlock.Permits(1, 2)} {
		_, err = a.Lock(background, "k", lease, option)
		rlock.Is(t, err, rlock.ErrOutOfRange)
	}
	_, err = a.Lock(background, "", lease)
	rlock.Is(t, err, rlock.ErrOutOfRange)
	rlock.Done(t, hold.Check())
	rlock.Done(t, hold.Release(background))
	m.untouched(t, "k")

	// The lock stays taken until its least time is over.
	least, began := 600*time.Millisecond, time.Now()
	rlock.Done(t, rlock.Must(a.Lock(background, "k", lease))(t).ReleaseAfter(background, least))
	next := rlock.Must(b.Lock(background, "k", lease))(t)
	rlock.IsTrue(t, time.Since(began) >= least && next.Fence() > hold.Fence(), time.Since(began))
	rlock.Done(t, next.Release(background))

	activity := b.Activity()
	outer := rlock.Must(b.Lock(background, "k", lease, rlock.In(activity)))(t)
	inner := rlock.Must(b.TryLock(background, "k", lease, rlock.In(activity)))(t)
	rlock.IsTrue(t, outer.Fence() == inner.Fence() && outer.Fence() > next.Fence())
	rlock.Done(t, outer.Release(background))
	rlock.Done(t, inner.Check())
	_, err = a.TryLock(background, "k", lease)
	rlock.Is(t, err, rlock.ErrNotAcquired)
	rlock.Done(t, inner.Release(background))

	// The default lease is above the grace.
	_, err = a.Lock(background, "k")
	rlock.Is(t, err, rlock.ErrMember)
	rlock.IsTrue(t, strings.Contains(err.Error(), "its `rlock.startup-grace-ms` is 1500, below the lease of 30000 ms"), err)
	any := open(t, m.urls(), rlock.Options{}, quorum.AnyGrace())
	rlock.Done(t, any.Run(background, "k", func(ctx context.Context, hold *rlock.Hold) error {
		return errors.Join(hold.Extend(ctx, time.Minute), ctx.Err())
	}))

	hold = rlock.Must(a.Lock(background, "k", lease))(t)
	waits := make(chan error, 1)
	go func() {
		_, err := a.Lock(background, "k", lease)
		waits <- err
	}()
	rlock.Eventually(t, "it waits", func() bool {
		return slices.ContainsFunc([]int{0, 1, 2}, func(i int) bool {
			return strings.Contains(m.ask(t, i, "RLOCK.INFO", "k"), "queued\r\n:1\r\n")
		})
	})
	rlock.Done(t, a.Close(background))
	rlock.Is(t, <-waits, rlock.ErrClosed)
	rlock.Is(t, context.Cause(hold.Context()), rlock.ErrClosed)
	m.untouched(t, "k")
}

func TestQuorumRefused(t *testing.T) {
	t.Parallel()
	m := startMembers(t, 4)
	urls := m.urls()
	refused := func(urls []string, options rlock.Options, named string) {
		t.Helper()
		_, err := quorum.New(urls, options)
		rlock.Is(t, err, rlock.ErrOutOfRange)
		rlock.IsTrue(t, strings.Contains(err.Error(), named), err)
	}
	for _, count := range []int{0, 1, 2, 4, 10} {
		refused(slices.Repeat(urls[:1], count), rlock.Options{}, fmt.Sprintf("members is %d servers, it must be 3, 5, 7 or 9", count))
	}
	refused([]string{urls[0], "redis://\xff", urls[1]}, rlock.Options{}, "members[1] must be UTF-8")
	for _, wrong := range []string{"redis+sentinel://h/m", "rediss+cluster://h", "nothing"} {
		refused([]string{urls[0], wrong, urls[1]}, rlock.Options{}, "members[1] is ")
	}
	refused(urls[:3], rlock.Options{RetryTimeout: -1}, "RetryTimeout is -1ns")
	refused(urls[:3], rlock.Options{Name: "a b"}, "name")

	twins := []string{urls[0], urls[1], strings.Replace(urls[0], "127.0.0.1", "localhost", 1)}
	err := open(t, twins, rlock.Options{}).Connect(background)
	rlock.Is(t, err, rlock.ErrMember)
	rlock.IsTrue(t, strings.Contains(err.Error(), "is the same server as"), err)

	m.ask(t, 3, "REPLICAOF", "127.0.0.1", fmt.Sprint(m[0].Servers[0].Port))
	err = open(t, urls[1:], rlock.Options{}).Connect(background)
	rlock.Is(t, err, rlock.ErrMember)
	rlock.IsTrue(t, strings.Contains(err.Error(), "it is a replica"), err)

	// One refuses the password: at first that is an error, and later it is a member that is missing.
	m.ask(t, 2, "ACL", "SETUSER", "app", "on", ">p", "~*", "&*", "+@all")
	urls = []string{urls[0], urls[1], strings.Replace(urls[2], "redis://", "redis://app:p@", 1)}
	q, late := open(t, urls, rlock.Options{}), open(t, urls, rlock.Options{})
	rlock.Done(t, q.Connect(background))
	m.ask(t, 2, "ACL", "DELUSER", "app") // Also ends its connections.
	_, locked := late.Lock(background, "k", rlock.Lease(grace))
	for _, err := range []error{locked, late.Connect(background)} {
		rlock.Is(t, err, rlock.ErrConnect)
		rlock.IsTrue(t, strings.Contains(err.Error(), "WRONGPASS"), err)
	}
	rlock.Done(t, rlock.Must(q.Lock(background, "k", rlock.Lease(grace)))(t).Release(background))
	m.signal(1, syscall.SIGKILL)
	_, err = q.Lock(background, "k", rlock.Lease(grace), rlock.Wait(300*time.Millisecond))
	rlock.Is(t, err, rlock.ErrUnavailable)
}

// TestQuorumListener: a lock of a quorum is one wait and one hold.
func TestQuorumListener(t *testing.T) {
	t.Parallel()
	m := startMembers(t, 3)
	counts, mu := map[string]int{}, sync.Mutex{}
	q := rlock.Must(quorum.New(m.urls(), rlock.Options{Listener: func(it rlock.Occurrence) {
		mu.Lock()
		defer mu.Unlock()
		counts[fmt.Sprint(it.Kind, " ", it.Outcome, it.Keys)]++
	}}))(t)
	rlock.Done(t, q.Connect(background))
	rlock.Eventually(t, "all are connected", func() bool { // Connect needs a majority.
		mu.Lock()
		defer mu.Unlock()
		return counts["connected []"] == 3
	})
	rlock.Done(t, rlock.Must(q.Lock(background, "k", rlock.Lease(grace)))(t).Release(background))
	rlock.Done(t, q.Close(background))
	rlock.IsTrue(t, maps.Equal(counts, map[string]int{"connected []": 3, "wait granted[k]": 1, "hold released[k]": 1}), counts)
}

// TestQuorumHolder: a holder keeps its lock while a minority fails, and learns in time that a majority does.
func TestQuorumHolder(t *testing.T) {
	t.Parallel()
	m := startMembers(t, 3)
	options := rlock.Options{ResponseTimeout: 400 * time.Millisecond}
	q, other := open(t, m.urls(), options), open(t, m.urls(), options)
	hold := rlock.Must(q.Lock(background, "k", rlock.Lease(grace)))(t)
	keeps := func(what string, condition func() bool) {
		t.Helper()
		rlock.Eventually(t, what, func() bool {
			rlock.Done(t, hold.Check())
			return condition()
		})
	}
	passes := func(d time.Duration) func() bool {
		began := time.Now()
		return func() bool { return time.Since(began) > d }
	}
	rlock.Done(t, other.Connect(background))
	m.signal(0, syscall.SIGSTOP)
	keeps("a lease ends at the stopped member", passes(2*grace))
	_, err := other.Lock(background, "k", rlock.Lease(grace), rlock.Wait(grace))
	rlock.Is(t, err, rlock.ErrNotAcquired)
	m.signal(0, syscall.SIGCONT)
	holds := func(member int) func() bool {
		return func() bool { return strings.Contains(m.ask(t, member, "RLOCK.INFO", "k"), hold.Owner()) }
	}
	keeps("the stopped member holds it again", holds(0))
	m.signal(1, syscall.SIGKILL)
	keeps("a lease ends at the killed member", passes(2*grace))
	m.restart(t, 1)
	began := time.Now()
	keeps("the empty member answers", func() bool {
		socket, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", m[1].Servers[0].Port))
		if err == nil {
			socket.Close()
		}
		return err == nil
	})
	keeps("the empty member holds it again", holds(1))
	rlock.IsTrue(t, time.Since(began) >= grace-100*time.Millisecond, "it grants nothing at first")
	t.Logf("the empty member holds it %v after its start, with a grace of %v", time.Since(began), grace)
	m.ask(t, 2, "DEL", "k")
	keeps("the emptied member holds it again", holds(2))

	began = time.Now()
	m.signal(0, syscall.SIGKILL)
	m.signal(2, syscall.SIGKILL)
	<-hold.Context().Done()
	t.Logf("told of the loss %v after two of three died, with a lease of %v", time.Since(began), grace)
	rlock.IsTrue(t, time.Since(began) < 2*grace, time.Since(began))
	rlock.Is(t, context.Cause(hold.Context()), rlock.ErrLost)
	rlock.IsTrue(t, hold.Remaining() == 0)
	rlock.Is(t, hold.Release(background), rlock.ErrLost)
}

// TestQuorumContenders: processes exclude each other under rising fences while one of five members is killed and another one
// is stopped, and all are served.
func TestQuorumContenders(t *testing.T) {
	t.Parallel()
	const processes, callers, rounds = 3, 3, 40
	if urls := os.Getenv("RLOCK_CONTENDS"); urls != "" {
		q := open(t, strings.Split(urls, ","), rlock.Options{ResponseTimeout: 400 * time.Millisecond})
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				for range rounds {
					hold := rlock.Must(q.Lock(background, "k", rlock.Lease(grace)))(t)
					began := time.Now()
					time.Sleep(time.Millisecond)
					ended := time.Now()
					if hold.Check() == nil {
						fmt.Printf("held %d %d %d\n", began.UnixNano(), ended.UnixNano(), hold.Fence())
					}
					hold.Release(background)
				}
			})
		}
		all.Wait()
		return
	}
	m := startMembers(t, 5)
	type held struct{ began, ended, fence int64 }
	lines := make(chan string)
	var ended sync.WaitGroup
	for range processes {
		child := exec.Command(os.Args[0], "-test.run=TestQuorumContenders$")
		child.Env = append(os.Environ(), "RLOCK_CONTENDS="+strings.Join(m.urls(), ","))
		output := rlock.Must(child.StdoutPipe())(t)
		child.Stderr = os.Stderr
		rlock.Done(t, child.Start())
		ended.Go(func() {
			for scanner := bufio.NewScanner(output); scanner.Scan(); {
				if strings.HasPrefix(scanner.Text(), "held ") {
					lines <- scanner.Text()
				} else {
					fmt.Fprintln(os.Stderr, scanner.Text())
				}
			}
			if err := child.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
	go func() {
		ended.Wait()
		close(lines)
	}()
	var all []held
	for line := range lines {
		var it held
		rlock.Must(fmt.Sscanf(line, "held %d %d %d", &it.began, &it.ended, &it.fence))(t)
		all = append(all, it)
		switch len(all) {
		case processes * callers * rounds / 4:
			m.signal(1, syscall.SIGKILL)
		case processes * callers * rounds / 2:
			m.signal(3, syscall.SIGSTOP)
		}
	}
	slices.SortFunc(all, func(a, b held) int { return int(a.began - b.began) })
	for i := range len(all) - 1 {
		rlock.IsTrue(t, all[i].ended <= all[i+1].began, "two held it at once", all[i], all[i+1])
		rlock.IsTrue(t, all[i].fence < all[i+1].fence, "fences rise", all[i], all[i+1])
	}
	t.Logf("%d of %d grants were noted as held", len(all), processes*callers*rounds)
	rlock.IsTrue(t, len(all) >= processes*callers*rounds-2, len(all))
}
