package rlock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestOneHoldsAtATimeInTheOrderOfAsking(t *testing.T) {
	t.Parallel()
	client := connect(t, shared.address())
	locks := locksOf(t, client)
	first := lock(t, locks, t.Name())
	order := make(chan int, 8)
	var inside, most atomic.Int32
	var all sync.WaitGroup
	last := atomic.Int64{}
	last.Store(first.Fence())
	for i := range 8 {
		all.Go(func() {
			held, err := locks.Lock(t.Context(), t.Name(), Wait(time.Minute))
			if err != nil {
				t.Error(err)
				return
			}
			most.Store(max(most.Load(), inside.Add(1)))
			if before := last.Swap(held.Fence()); before >= held.Fence() {
				t.Errorf("fence %d after %d", held.Fence(), before)
			}
			order <- i
			inside.Add(-1)
			if err := held.Release(); err != nil {
				t.Error(err)
			}
		})
		queued(t, client, t.Name(), fmt.Sprint(i+1))
	}
	release(t, first)
	all.Wait()
	for i := range 8 {
		if got := <-order; got != i {
			t.Errorf("number %d came as number %d", got, i)
		}
	}
	if most.Load() != 1 {
		t.Errorf("%d were inside at once", most.Load())
	}
	isFree(t, client, t.Name())
}

func TestAWaiterIsHandedTheLockWithoutPolling(t *testing.T) {
	t.Parallel()
	alone := newServer(t, "--loadmodule", module())
	client := connect(t, alone.address())
	locks := locksOf(t, client)
	holder := lock(t, locks, "k")
	granted := make(chan *Held)
	go func() {
		held, err := locks.Lock(t.Context(), "k")
		if err != nil {
			t.Error(err)
		}
		granted <- held
	}()
	queued(t, client, "k", "1")
	time.Sleep(700 * time.Millisecond) // What polls would ask in this time.
	release(t, holder)
	held := <-granted
	if asked := calls(t, client, "RLOCK.ACQUIRE"); asked != "3" {
		t.Errorf("%s requests, must be one try each and one wait", asked)
	}
	release(t, held)
}

func TestAHoldIsRenewedPastItsLease(t *testing.T) {
	t.Parallel()
	client := connect(t, shared.address())
	locks := locksOf(t, client)
	held := lock(t, locks, t.Name(), Lease(time.Second))
	time.Sleep(2500 * time.Millisecond) // More than two leases.
	if err := held.Check(); err != nil {
		t.Error(err)
	}
	if held.Context().Err() != nil {
		t.Error(held.Context().Err())
	}
	if _, err := locks.Lock(t.Context(), t.Name(), Wait(0)); !errors.Is(err, ErrNotAcquired) {
		t.Errorf("%v, must be not acquired", err)
	}
	release(t, held)
	release(t, held)
	isFree(t, client, t.Name())
	if err := held.Check(); err == nil || errors.Is(err, ErrLost) || held.Context().Err() == nil {
		t.Errorf("%v and %v after the release", err, held.Context().Err())
	}
}

func TestALongWaitWithAShortLeaseIsConfirmed(t *testing.T) {
	t.Parallel()
	client := connect(t, shared.address())
	locks := locksOf(t, client)
	holder := lock(t, locks, t.Name())
	time.AfterFunc(1500*time.Millisecond, func() { _ = holder.Release() }) // More than the lease.
	held := lock(t, locks, t.Name(), Lease(time.Second))
	time.Sleep(1500 * time.Millisecond)
	if err := held.Check(); err != nil {
		t.Error(err)
	}
	release(t, held)
}

func TestAForcedReleaseIsToldAsLoss(t *testing.T) {
	t.Parallel()
	client := connect(t, shared.address())
	locks := locksOf(t, client)
	one := lock(t, locks, t.Name(), Lease(600*time.Millisecond))
	two, err := locks.LockAll(t.Context(), []string{t.Name() + "1", t.Name() + "2"}, Lease(600*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{t.Name(), t.Name() + "2"} {
		if err := client.Do(t.Context(), "RLOCK.FORCE", key).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, held := range []*Held{one, two} {
		ends(t, held)
		if cause := context.Cause(held.Context()); !errors.Is(cause, ErrLost) || !errors.Is(held.Check(), ErrLost) {
			t.Errorf("%v and %v, must be lost", cause, held.Check())
		}
		release(t, held)
	}
	isFree(t, client, t.Name()+"1")
}

func TestAHolderWithAnotherFenceHasLost(t *testing.T) {
	t.Parallel()
	client := connect(t, shared.address())
	held := lock(t, locksOf(t, client), t.Name(), Lease(600*time.Millisecond), Owner("me"))
	client.Do(t.Context(), "RLOCK.FORCE", t.Name())
	if err := client.Do(t.Context(), "RLOCK.ACQUIRE", t.Name(), "me", 60000).Err(); err != nil {
		t.Fatal(err)
	}
	ends(t, held)
	if !errors.Is(held.Check(), ErrLost) {
		t.Error(held.Check())
	}
}

func TestALossIsToldBeforeAStoppedServerCanGrantToOthers(t *testing.T) {
	t.Parallel()
	alone := newServer(t, "--loadmodule", module())
	held := lock(t, locksOf(t, connect(t, alone.address())), "k", Lease(600*time.Millisecond))
	begin := time.Now()
	pause(t, alone)
	ends(t, held)
	if took := time.Since(begin); !errors.Is(context.Cause(held.Context()), ErrLost) || took > 3*time.Second {
		t.Errorf("%v after %v", context.Cause(held.Context()), took)
	}
	resume(t, alone)
	release(t, held)
}

func TestAWaitThatIsOverLeavesNoPlace(t *testing.T) {
	t.Parallel()
	client := connect(t, shared.address())
	locks := locksOf(t, client)
	held := lock(t, locks, t.Name())
	for _, wait := range []time.Duration{0, 1500 * time.Microsecond, 200 * time.Millisecond} {
		begin := time.Now()
		_, err := locks.Lock(t.Context(), t.Name(), Wait(wait))
		if took := time.Since(begin); !errors.Is(err, ErrNotAcquired) || took < wait || took > wait+3*time.Second {
			t.Errorf("%v after %v", err, took)
		}
		if places := info(t, client, t.Name(), "queued"); places != "0" {
			t.Errorf("%s places are left", places)
		}
	}
	release(t, held)
}

func TestAWithdrawnWaiterIsToldSo(t *testing.T) {
	t.Parallel()
	client := connect(t, shared.address())
	locks := locksOf(t, client)
	defer release(t, lock(t, locks, t.Name()))
	done := make(chan error)
	go func() {
		_, err := locks.Lock(t.Context(), t.Name(), Owner("waiter"))
		done <- err
	}()
	queued(t, client, t.Name(), "1")
	client.Do(t.Context(), "RLOCK.CANCEL", t.Name(), "waiter")
	if err := <-done; !errors.Is(err, ErrNotAcquired) {
		t.Error(err)
	}
}

func TestACancelledWaiterLeavesTheQueue(t *testing.T) {
	t.Parallel()
	client := connect(t, shared.address())
	locks := locksOf(t, client)
	held := lock(t, locks, t.Name())
	why := errors.New("no need any more")
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error)
	go func() {
		_, err := locks.Lock(ctx, t.Name(), Wait(time.Hour))
		done <- err
	}()
	queued(t, client, t.Name(), "1")
	cancel(why)
	if err := <-done; !errors.Is(err, why) {
		t.Error(err)
	}
	if places := info(t, client, t.Name(), "queued"); places != "0" {
		t.Errorf("%s places are left", places)
	}
	limited, end := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer end()
	if _, err := locks.Lock(limited, t.Name(), Wait(time.Hour)); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	release(t, held)
	isFree(t, client, t.Name())
}

func TestCancelledInTheMomentOfTheGrantTheLockIsFree(t *testing.T) {
	t.Parallel()
	client := connect(t, shared.address())
	locks := locksOf(t, client)
	var granted, refused int
	for i := range 200 {
		holder := lock(t, locks, t.Name())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			held, err := locks.Lock(ctx, t.Name())
			if err == nil {
				err = held.Release()
				granted++
			} else {
				refused++
			}
			done <- err
		}()
		if i%4 != 0 { // Else it may not even have asked.
			queued(t, client, t.Name(), "1")
		}
		go cancel()
		release(t, holder)
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if mode := info(t, client, t.Name(), "mode"); mode != "free" {
			t.Fatalf("round %d: %s after the cancelling", i, mode)
		}
		isFree(t, client, t.Name())
	}
	t.Logf("%d granted, %d cancelled", granted, refused)
}

func TestReadersShareAndPermitsAreCounted(t *testing.T) {
	t.Parallel()
	locks := locksOf(t, connect(t, shared.address()))
	one, two := lock(t, locks, t.Name(), Shared()), lock(t, locks, t.Name(), Shared())
	if _, err := locks.Lock(t.Context(), t.Name(), Wait(0)); !errors.Is(err, ErrNotAcquired) {
		t.Errorf("a writer beside readers: %v", err)
	}
	release(t, one)
	release(t, two)
	three := lock(t, locks, t.Name(), Limit(4), Permits(3))
	if _, err := locks.Lock(t.Context(), t.Name(), Limit(4), Permits(2), Wait(0)); !errors.Is(err, ErrNotAcquired) {
		t.Errorf("five of four permits: %v", err)
	}
	release(t, lock(t, locks, t.Name(), Limit(4)))
	release(t, three)
}

func TestSeveralKeysAreTakenTogether(t *testing.T) {
	t.Parallel()
	client := connect(t, shared.address())
	locks := locksOf(t, client)
	a, b := t.Name()+"a", t.Name()+"b"
	holder := lock(t, locks, b)
	if _, err := locks.LockAll(t.Context(), []string{a, b}, Wait(0)); !errors.Is(err, ErrNotAcquired) {
		t.Error(err)
	}
	isFree(t, client, a)
	time.AfterFunc(100*time.Millisecond, func() { _ = holder.Release() })
	both, err := locks.LockAll(t.Context(), []string{a, b}, Lease(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(2500 * time.Millisecond) // More than two leases.
	if both.Check() != nil || strings.Join(both.Keys(), " ") != a+" "+b {
		t.Error(both.Check(), both.Keys())
	}
	if _, err := locks.Lock(t.Context(), a, Wait(0)); !errors.Is(err, ErrNotAcquired) {
		t.Error(err)
	}
	release(t, both)
	isFree(t, client, a)
	isFree(t, client, b)
}

func TestADeadlockIsRefused(t *testing.T) {
	t.Parallel()
	client := connect(t, shared.address())
	locks := locksOf(t, client)
	a, b := t.Name()+"a", t.Name()+"b"
	one, two := lock(t, locks, a, Owner("dead:1")), lock(t, locks, b, Owner("dead:2"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := locks.Lock(ctx, b, Owner("dead:1"))
		done <- err
	}()
	queued(t, client, b, "1")
	_, err := locks.Lock(t.Context(), a, Owner("dead:2"))
	var refusal *ServerError
	if !errors.As(err, &refusal) || refusal.Word != "DEADLOCK" || !strings.Contains(err.Error(), "dead:1") {
		t.Error(err)
	}
	cancel()
	<-done
	release(t, one)
	release(t, two)
}

func TestRefusalsOfTheServerAreToldApart(t *testing.T) {
	t.Parallel()
	client := connect(t, shared.address())
	client.Set(t.Context(), t.Name(), "no lock", 0)
	bare := newServer(t)
	for word, locks := range map[string]*Locks{
		"WRONGTYPE": locksOf(t, client), "NOMODULE": locksOf(t, connect(t, bare.address()))} {
		_, err := locks.Lock(t.Context(), t.Name())
		var refusal *ServerError
		if !errors.As(err, &refusal) || refusal.Word != word {
			t.Errorf("%v, must be %s", err, word)
		}
	}
}

func TestBadArgumentsAreNamedBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	nowhere := locksOf(t, connect(t, "127.0.0.1:1"))
	for want, options := range map[string][]Option{
		"Lease is 0s, must be 1 ms to 24 h":                      {Lease(0)},
		"Lease is 24h0m0.001s, must be 1 ms to 24 h":             {Lease(longest + time.Millisecond)},
		"Wait is -1ns, must be 0 to 24 h":                        {Wait(-1)},
		"Wait is 24h0m0.000000001s, must be 0 to 24 h":           {Wait(longest + 1)},
		"Limit is 0, must be 1 to 1000000":                       {Limit(0)},
		"Limit is 1000001, must be 1 to 1000000":                 {Limit(1_000_001)},
		"Permits is 1, must be given together with Limit":        {Permits(1)},
		"Permits is 3, must be 1 to 2, the Limit":                {Limit(2), Permits(3)},
		"Permits is 0, must be 1 to 2, the Limit":                {Limit(2), Permits(0)},
		"Owner is 0 bytes long, must be 1 to 256 bytes long":     {Owner("")},
		"Owner is 257 bytes long, must be 1 to 256 bytes long":   {Owner(strings.Repeat("x", 257))},
		"Owner is \"rlock:x\", must be without 'rlock:'":         {Owner("rlock:x")},
		"Owner is \"a b\", must be without the bytes 0x00 to 0x": {Owner("a b")},
	} {
		if _, err := nowhere.Lock(t.Context(), "k", options...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, must be %s", err, want)
		}
	}
	for want, keys := range map[string][]string{
		"the number of keys is 0, must be 1 to 1024":    {},
		"the number of keys is 1025, must be 1 to 1024": make([]string, 1025),
		`a key is "k" twice, must be named once`:        {"k", "k"},
	} {
		if _, err := nowhere.LockAll(t.Context(), keys); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, must be %s", err, want)
		}
	}
	_, err := nowhere.LockAll(t.Context(), []string{"a", "b"}, Shared())
	if err == nil || !strings.Contains(err.Error(), "Shared is true, must be left out with several keys") {
		t.Error(err)
	}
	if _, err := New(redis.NewRing(&redis.RingOptions{})); err == nil || !strings.Contains(err.Error(), "*redis.Ring") {
		t.Error(err)
	}
}

func TestTheRightsOfAnApplicationAreEnough(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rule, _ := strings.Cut(string(page), "`user application on >a-password ")
	rule, _, _ = strings.Cut(rule, "`")
	server := newServer(t, "--loadmodule", module())
	admin := connect(t, server.address())
	command := []any{"ACL", "SETUSER", "application", "on", ">a-password"}
	for _, word := range strings.Fields(rule) {
		command = append(command, word)
	}
	if err := admin.Do(t.Context(), command...).Err(); err != nil {
		t.Fatal(err)
	}
	user := connectWith(t, &redis.Options{Addr: server.address(), Username: "application", Password: "a-password"})
	locks := locksOf(t, user)
	held := lock(t, locks, "lock:a", Lease(1500*time.Millisecond))
	done := make(chan error, 1)
	go func() {
		held, err := locks.Lock(t.Context(), "lock:a", Wait(time.Minute))
		if err == nil {
			err = held.Release()
		}
		done <- err
	}()
	queued(t, admin, "lock:a", "1")
	if _, err := locks.Lock(t.Context(), "lock:a", Wait(2*time.Second)); !errors.Is(err, ErrNotAcquired) {
		t.Error(err)
	}
	release(t, held) // It was renewed.
	if err := <-done; err != nil {
		t.Error(err)
	}
	release(t, lock(t, locks, "lock:a", Shared()))
	release(t, lock(t, locks, "lock:u", Limit(4), Permits(3)))
	both, err := locks.LockAll(t.Context(), []string{"lock:a", "lock:b"})
	if err != nil {
		t.Fatal(err)
	}
	release(t, both)
	if log := admin.ACLLog(t.Context(), 10); log.Err() != nil || len(log.Val()) > 0 {
		t.Errorf("%v %v", log.Val(), log.Err())
	}
	if _, err := locks.Lock(t.Context(), "other"); err == nil {
		t.Error("granted without the right")
	}
}
