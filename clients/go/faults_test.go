package rlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func pause(t *testing.T, s *server) {
	if err := s.process.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
}

func resume(t *testing.T, s *server) {
	if err := s.process.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// ways are the two ways in which a reply gets lost.
func ways(t *testing.T, run func(t *testing.T, hang bool)) {
	for name, hang := range map[string]bool{"closing": false, "hanging": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, hang)
		})
	}
}

// behind gives Locks behind a proxy that loses replies. Its client gives up a silent connection after a second.
func behind(t *testing.T) (*Locks, *proxy) {
	p := newProxy(t, shared.address())
	client := connectWith(t, &redis.Options{Addr: p.address, ReadTimeout: time.Second})
	client.Ping(t.Context())
	return locksOf(t, client), p
}

func held1(t *testing.T, client redis.UniversalClient, key string) {
	t.Helper()
	if holders := info(t, client, key, "holders"); strings.Count(holders, "owner") != 1 || !strings.Contains(holders, "count:1 ") {
		t.Errorf("%s, must be one hold with count 1", holders)
	}
}

func TestALostReplyToATryLeavesOneHold(t *testing.T) {
	t.Parallel()
	ways(t, func(t *testing.T, hang bool) {
		direct := connect(t, shared.address())
		locks, p := behind(t)
		lost := p.lose("RLOCK.ACQUIRE", hang)
		held := lock(t, locks, t.Name(), Wait(4*time.Second))
		<-lost
		held1(t, direct, t.Name())
		release(t, held)
		isFree(t, direct, t.Name())
	})
}

func TestALostReplyToAWaitLeavesOneHold(t *testing.T) {
	t.Parallel()
	direct := connect(t, shared.address())
	locks, p := behind(t)
	holder := lock(t, locksOf(t, direct), t.Name())
	granted := make(chan *Held)
	lost := p.lose("WAIT", false)
	go func() { granted <- lock(t, locks, t.Name(), Wait(8*time.Second)) }()
	queued(t, direct, t.Name(), "1")
	release(t, holder)
	<-lost
	held := <-granted
	held1(t, direct, t.Name())
	release(t, held)
	isFree(t, direct, t.Name())
}

func TestASilentWaitLeavesNoGhost(t *testing.T) {
	t.Parallel()
	direct := connect(t, shared.address())
	locks, p := behind(t)
	holder := lock(t, locksOf(t, direct), t.Name())
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	lost := p.lose("WAIT", true)
	done := make(chan error)
	go func() {
		_, err := locks.Lock(ctx, t.Name(), Lease(time.Hour))
		done <- err
	}()
	queued(t, direct, t.Name(), "1")
	release(t, holder)
	<-lost // The grant never arrives.
	if err := <-done; !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	// The wait's connection is silent for ten seconds more: only then it is known not to ask any more.
	eventually(t, "another can have it", func() bool {
		held, err := locksOf(t, direct).Lock(t.Context(), t.Name(), Wait(20*time.Second))
		return err == nil && held.Release() == nil
	})
}

func TestALostReplyToARenewalIsNoLoss(t *testing.T) {
	t.Parallel()
	ways(t, func(t *testing.T, hang bool) {
		direct := connect(t, shared.address())
		locks, p := behind(t)
		held := lock(t, locks, t.Name(), Lease(1500*time.Millisecond))
		<-p.lose("RLOCK.RENEW", hang)
		time.Sleep(2 * time.Second) // More than the lease.
		if err := held.Check(); err != nil {
			t.Error(err)
		}
		held1(t, direct, t.Name())
		release(t, held)
	})
}

func TestALostReplyToAReleaseIsNoError(t *testing.T) {
	t.Parallel()
	ways(t, func(t *testing.T, hang bool) {
		locks, p := behind(t)
		held := lock(t, locks, t.Name())
		lost := p.lose("RLOCK.RELEASE", hang)
		release(t, held)
		<-lost
		isFree(t, connect(t, shared.address()), t.Name())
	})
}

func TestACallersLimitShorterThanTheWaitLeavesNoGhostOnAStoppedServer(t *testing.T) {
	t.Parallel()
	alone := newServer(t, "--loadmodule", module())
	client := connect(t, alone.address())
	client.Ping(t.Context())
	locks := locksOf(t, client)
	pause(t, alone)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	begin := time.Now()
	_, err := locks.Lock(ctx, "k", Owner("me"), Lease(time.Hour), Wait(time.Minute))
	if took := time.Since(begin); !errors.Is(err, context.DeadlineExceeded) || took > 3*time.Second {
		t.Errorf("%v after %v", err, took)
	}
	resume(t, alone)
	held := lock(t, locks, "k", Owner("me")) // After the withdrawal, which would end this hold.
	isHeld := info(t, client, "k", "mode")
	if locks.withdrawal("me") != nil || isHeld != "exclusive" {
		t.Error(isHeld)
	}
	release(t, held)
	isFree(t, client, "k")
}

func TestAfterARestartTheHolderIsToldAndTheWaiterGetsIt(t *testing.T) {
	t.Parallel()
	alone := newServer(t, "--loadmodule", module())
	client := connect(t, alone.address())
	locks := locksOf(t, client)
	holder := lock(t, locks, "k", Lease(2*time.Second))
	granted := make(chan *Held)
	go func() {
		held, err := locks.Lock(t.Context(), "k")
		if err != nil {
			t.Error(err)
		}
		granted <- held
	}()
	queued(t, client, "k", "1")
	alone.kill()
	if err := alone.start(alone.arguments...); err != nil {
		t.Fatal(err)
	}
	ends(t, holder)
	if !errors.Is(context.Cause(holder.Context()), ErrLost) {
		t.Error(context.Cause(holder.Context()))
	}
	held := <-granted
	if held.Fence() <= holder.Fence() {
		t.Errorf("fence %d after %d", held.Fence(), holder.Fence())
	}
	release(t, held)
}

func TestAWaiterKeepsItsTurnWhenItsConnectionIsLost(t *testing.T) {
	t.Parallel()
	client := connect(t, shared.address())
	locks := locksOf(t, client)
	holder := lock(t, locks, t.Name())
	order := make(chan int, 2)
	var all sync.WaitGroup
	defer all.Wait()
	for i := range 2 {
		all.Go(func() {
			held, err := locks.Lock(t.Context(), t.Name(), Owner(fmt.Sprint("turn:", i)))
			if err != nil {
				t.Error(err)
				order <- -1
				return
			}
			order <- i
			if err := held.Release(); err != nil {
				t.Error(err)
			}
		})
		queued(t, client, t.Name(), fmt.Sprint(i+1))
	}
	waiters := info(t, client, t.Name(), "waiters")
	_, rest, _ := strings.Cut(waiters, "client-id:")
	id := strings.FieldsFunc(rest, func(c rune) bool { return c == ' ' || c == ']' })[0]
	if killed, err := client.ClientKillByFilter(t.Context(), "ID", id).Result(); err != nil || killed != 1 {
		t.Fatal(killed, err, waiters)
	}
	eventually(t, "it asks again", func() bool {
		now := info(t, client, t.Name(), "waiters")
		return strings.Count(now, "client-id") == 2 && !strings.Contains(now, "client-id:<nil>") && !strings.Contains(now, "client-id:"+id+" ")
	})
	release(t, holder)
	if first := <-order; first != 0 {
		t.Errorf("%d was first", first)
	}
	<-order
}

func TestAnUnreachableServerIsAnErrorAfterALease(t *testing.T) {
	t.Parallel()
	locks := locksOf(t, connect(t, "127.0.0.1:1"))
	if _, err := locks.Lock(t.Context(), "k", Lease(100*time.Millisecond)); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Error(err)
	}
	held := &Held{locks: locks, request: &request{keys: []string{"k"}, owner: "me"}, ended: true}
	if err := held.Release(); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Error(err)
	}
}

func TestAPoolOfOneDoesNotBlockItself(t *testing.T) {
	t.Parallel()
	client := connectWith(t, &redis.Options{Addr: shared.address(), PoolSize: 1})
	locks := locksOf(t, client)
	holder := lock(t, locks, t.Name(), Lease(2*time.Second))
	granted := make(chan *Held)
	for range 3 {
		go func() { granted <- lock(t, locks, t.Name()) }()
	}
	queued(t, client, t.Name(), "3")
	time.Sleep(2500 * time.Millisecond) // More than the lease.
	if holder.Check() != nil {
		t.Error(holder.Check())
	}
	release(t, holder)
	for range 3 {
		release(t, <-granted)
	}
}

func TestAClusterClientFindsTheServerOfAKey(t *testing.T) {
	t.Parallel()
	node := newServer(t, "--cluster-enabled", "yes", "--loadmodule", module())
	one := connect(t, node.address())
	if err := one.ClusterAddSlotsRange(t.Context(), 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the cluster is up", func() bool {
		return strings.Contains(one.ClusterInfo(t.Context()).Val(), "cluster_state:ok")
	})
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{node.address()}})
	t.Cleanup(func() { _ = client.Close() })
	locks := locksOf(t, client)
	both, err := locks.LockAll(t.Context(), []string{"{k}1", "{k}2"}, Lease(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	granted := make(chan *Held)
	go func() { granted <- lock(t, locks, "{k}1") }()
	queued(t, one, "{k}1", "1")
	time.Sleep(1500 * time.Millisecond) // More than the lease.
	if both.Check() != nil {
		t.Error(both.Check())
	}
	release(t, both)
	release(t, <-granted)
	_, err = locks.LockAll(t.Context(), []string{"a", "b"})
	var refusal *ServerError
	if !errors.As(err, &refusal) || refusal.Word != "CROSSSLOT" {
		t.Error(err)
	}
}
