package rlock

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	translated "rlock/internal/engine"
)

var background = context.Background()

func must[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func done(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func is(t testing.TB, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("%v is not %v", err, kind)
	}
}

func isTrue(t testing.TB, condition bool, what ...any) {
	t.Helper()
	if !condition {
		t.Fatal(what...)
	}
}

// inBackground calls lock in a goroutine. The result waits for its outcome.
func inBackground(lock func() (*Hold, error)) func(testing.TB) *Hold {
	type outcome struct {
		hold *Hold
		err  error
	}
	ended := make(chan outcome, 1)
	go func() {
		hold, err := lock()
		ended <- outcome{hold, err}
	}()
	return func(t testing.TB) *Hold {
		t.Helper()
		select {
		case it := <-ended:
			return must(it.hold, it.err)(t)
		case <-time.After(15 * time.Second):
			t.Fatal("it was not granted")
			return nil
		}
	}
}

func TestHandOver(t *testing.T) {
	t.Parallel()
	s := start(t)
	a, b := connect(t, s.URL, Options{}), connect(t, s.URL, Options{})
	first := must(a.Lock(background, "k"))(t)
	_, err := b.TryLock(background, "k")
	is(t, err, ErrNotAcquired)
	_, err = b.Lock(background, "k", Wait(20*time.Millisecond))
	is(t, err, ErrNotAcquired)
	waits := inBackground(func() (*Hold, error) { return b.Lock(background, "k") })
	eventually(t, "it waits", func() bool { return isQueued(t, s.port(), "k", 1) })
	done(t, first.Release(background))
	second := waits(t)
	isTrue(t, second.Fence() > first.Fence())
	isTrue(t, second.Remaining() > 25*time.Second && second.Remaining() <= 30*time.Second, second.Remaining())
	done(t, second.Release(background))
	done(t, second.Release(background))
	isTrue(t, isFree(t, s.port(), "k"))
}

func TestKinds(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := connect(t, s.URL, Options{Name: "kinds"})
	one, two := must(c.Lock(background, "r", Shared()))(t), must(c.Lock(background, "r", Shared()))(t)
	_, err := c.TryLock(background, "r")
	is(t, err, ErrNotAcquired)
	is(t, one.Upgrade(background, Wait(20*time.Millisecond)), ErrNotAcquired)
	done(t, two.Release(background))
	done(t, one.Upgrade(background))
	_, err = c.TryLock(background, "r", Shared())
	is(t, err, ErrNotAcquired)
	done(t, one.Extend(background, time.Minute))
	isTrue(t, one.Remaining() > 50*time.Second)
	done(t, one.Downgrade(background))
	done(t, must(c.TryLock(background, "r", Shared()))(t).Release(background))
	done(t, one.Release(background))

	permits := must(c.Lock(background, "p", Permits(2, 3)))(t)
	_, err = c.TryLock(background, "p", Permits(2, 3))
	is(t, err, ErrNotAcquired)
	done(t, must(c.TryLock(background, "p", Permits(1, 3)))(t).Release(background))
	done(t, permits.Release(background))

	all := must(c.LockAll(background, []string{"b", "a"}))(t)
	isTrue(t, fmt.Sprint(all.Keys()) == "[b a]" && all.Fences()["a"] == all.Fence(), all.Fences())
	_, err = c.LockAll(background, []string{"c", "a"}, Wait(0))
	is(t, err, ErrNotAcquired)
	done(t, all.Release(background))

	key := "\xff\x00"
	hold := must(c.Lock(background, key))(t)
	info := must(c.Info(background, key))(t)
	holder := info["holders"].([]any)[0].(map[string]any)
	isTrue(t, strings.HasPrefix(hold.Owner(), "kinds:") && holder["owner"] == hold.Owner(), info)
	isTrue(t, must(c.Force(background, key))(t) == 1)
	is(t, hold.Release(background), ErrLost)
}

// TestReleasePermits: some permits are released, and the hold keeps the others.
func TestReleasePermits(t *testing.T) {
	t.Parallel()
	s := start(t)
	c, other := connect(t, s.URL, Options{}), connect(t, s.URL, Options{})
	refuses := func(hold *Hold, permits, held uint32) {
		t.Helper()
		err := hold.ReleasePermits(background, permits)
		is(t, err, ErrOutOfRange)
		isTrue(t, err.Error() == fmt.Sprintf("rlock: permits is %d, it must be from 1 to %d", permits, held), err)
	}
	hold := must(c.Lock(background, "p", Permits(3, 3)))(t)
	for _, permits := range []uint32{0, 4, math.MaxUint32} {
		refuses(hold, permits, 3)
	}
	_, err := other.TryLock(background, "p", Permits(1, 3))
	is(t, err, ErrNotAcquired)
	done(t, hold.ReleasePermits(background, 1))
	one := must(other.TryLock(background, "p", Permits(1, 3)))(t)
	refuses(hold, 3, 2)
	isTrue(t, hold.Check() == nil && one.Check() == nil)
	done(t, one.Release(background))
	_, err = other.TryLock(background, "p", Permits(2, 3))
	is(t, err, ErrNotAcquired)
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			if err := hold.ReleasePermits(background, 1); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	isTrue(t, isFree(t, s.port(), "p") && hold.Remaining() == 0)
	is(t, context.Cause(hold.Context()), context.Canceled)
	is(t, hold.ReleasePermits(background, 1), ErrLost)
	done(t, hold.Release(background))
	alone := must(c.Lock(background, "k"))(t)
	refuses(alone, 2, 1)
	done(t, alone.ReleasePermits(background, 1))
	isTrue(t, isFree(t, s.port(), "k"))
}

func TestForceFence(t *testing.T) {
	t.Parallel()
	c := connect(t, start(t).URL, Options{})
	hold := must(c.Lock(background, "k"))(t)
	isTrue(t, must(c.ForceFence(background, "k", hold.Fence()-1))(t) == 0)
	done(t, hold.Check())
	info := must(c.Info(background, "k"))(t)
	isTrue(t, must(c.ForceFence(background, "k", uint64(info["fence"].(int64))))(t) == 1)
	is(t, hold.Release(background), ErrLost)
	for _, fence := range []uint64{0, 1 << 53, 1 << 63} {
		_, err := c.ForceFence(background, "k", fence)
		is(t, err, ErrOutOfRange)
		isTrue(t, strings.Contains(err.Error(), fmt.Sprintf("fence is %d, it must be from 1 to 9007199254740991", fence)), err)
	}
}

func TestActivities(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := connect(t, s.URL, Options{})
	one, two := c.Activity(), c.Activity()
	a := must(c.Lock(background, "a", In(one)))(t)
	again := must(c.Lock(background, "a", In(one)))(t)
	isTrue(t, a.Fence() == again.Fence())
	done(t, a.Release(background))
	done(t, again.Check())
	b := must(c.Lock(background, "b", In(two)))(t)
	waits := inBackground(func() (*Hold, error) { return c.Lock(background, "b", In(one)) })
	eventually(t, "it waits", func() bool { return must(c.Info(background, "b"))(t)["queued"] == int64(1) })
	_, err := c.Lock(background, "a", In(two))
	is(t, err, ErrDeadlock)
	done(t, b.Release(background))
	done(t, waits(t).Release(background))
	// An activity is another owner in every other client.
	done(t, again.Release(background))
	other := connect(t, s.URL, Options{})
	mine := must(other.Lock(background, "a", In(other.Activity())))(t)
	_, err = other.TryLock(background, "a", In(one))
	is(t, err, ErrNotAcquired)
	done(t, mine.Release(background))
	for _, none := range []*Activity{nil, new(Activity)} {
		_, err = c.TryLock(background, "a", In(none))
		is(t, err, ErrOutOfRange)
	}
}

func TestTerms(t *testing.T) {
	t.Parallel()
	s := start(t, "replica")
	c := connect(t, s.URL, Options{})
	fixed := must(c.Lock(background, "fixed", FixedLease(300*time.Millisecond)))(t)
	most := must(c.Lock(background, "most", Lease(300*time.Millisecond), MaxHold(700*time.Millisecond)))(t)
	bound := must(c.Lock(background, "bound", Bound(time.Second)))(t)
	known := must(c.Lock(background, "known", Replicas(1)))(t)
	early := must(c.Lock(background, "early", Margin(10*time.Second)))(t)
	isTrue(t, early.Remaining() > 10*time.Second && early.Remaining() < 20*time.Second)
	time.Sleep(400 * time.Millisecond)
	is(t, fixed.Check(), ErrLost)
	isTrue(t, most.Check() == nil && bound.Check() == nil && known.Check() == nil)
	time.Sleep(400 * time.Millisecond)
	isTrue(t, most.Context().Err() != nil)
	done(t, known.ReleaseAfter(background, 1200*time.Millisecond))
	isTrue(t, !isFree(t, s.port(), "known"))
	_, err := c.Lock(background, "x", Bound(time.Second), Replicas(1))
	is(t, err, ErrOutOfRange)
	_, err = c.Lock(background, "x", Replicas(5))
	is(t, err, ErrNotReplicated)
	ignored := must(c.Lock(background, "ignored", FixedLease(3*time.Millisecond), IgnoreLoss()))(t)
	time.Sleep(5 * time.Millisecond)
	done(t, ignored.Release(background))
}

// TestReleaseAfterIsOutOfRange: the hold goes on, and the next release ends it.
func TestReleaseAfterIsOutOfRange(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := connect(t, s.URL, Options{})
	hold := must(c.Lock(background, "k"))(t)
	for _, least := range []time.Duration{-1, 30*24*time.Hour + 1, math.MaxInt64} {
		is(t, hold.ReleaseAfter(background, least), ErrOutOfRange)
		done(t, hold.Check())
	}
	done(t, hold.Release(background))
	isTrue(t, isFree(t, s.port(), "k"))
}

// TestCloseReports: a release that the server refuses is an error of Close.
func TestCloseReports(t *testing.T) {
	t.Parallel()
	s := start(t, "one")
	ask(t, s.port(), "ACL", "SETUSER", "app", "on", ">p", "~*", "&*", "+@all", "-rlock.release")
	c := must(NewClient(fmt.Sprintf("redis://app:p@127.0.0.1:%d", s.port()), Options{}))(t)
	must(c.Lock(background, "k", IgnoreLoss()))(t)
	err := c.Close(background)
	is(t, err, ErrNotReleased)
	isTrue(t, strings.Contains(err.Error(), "k was not released: not permitted"), err)
}

func TestBadArguments(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"http://x", "redis://", "redis://127.0.0.1:x"} {
		_, err := NewClient(url, Options{})
		is(t, err, ErrOutOfRange)
	}
	_, err := NewClient("redis://127.0.0.1:1", Options{RetryTimeout: -1})
	isTrue(t, err != nil && strings.Contains(err.Error(), "RetryTimeout is -1ns"), err)
	for named, it := range map[string]struct{ url, name string }{
		"url must be UTF-8": {"redis://\xff", ""}, `Name is "\xff", it must be UTF-8`: {"redis://127.0.0.1:1", "\xff"},
	} {
		_, err = NewClient(it.url, Options{Name: it.name})
		is(t, err, ErrOutOfRange)
		isTrue(t, strings.Contains(err.Error(), named), err)
	}
	c := connect(t, "redis://127.0.0.1:1", Options{})
	for named, options := range map[string][]Option{
		"lease is 2ms":          {Lease(2 * time.Millisecond)},
		"Wait is -1ns":          {Wait(-1)},
		"MaxHold is -1s":        {MaxHold(-time.Second)},
		"margin is 10.001s":     {Margin(10001 * time.Millisecond)},
		"permits is 3":          {Permits(3, 2)},
		"Permits are 0 of 2":    {Permits(0, 2)},
		"Shared and Permits ca": {Permits(1, 2), Shared()},
		"OnRisk is nil":         {OnRisk(nil)},
	} {
		_, err := c.Lock(background, "k", options...)
		is(t, err, ErrOutOfRange)
		isTrue(t, strings.Contains(err.Error(), named), err)
	}
	for _, keys := range [][]string{nil, {""}, {"a", "a"}} {
		_, err := c.LockAll(background, keys)
		is(t, err, ErrOutOfRange)
	}
}

func TestNilContexts(t *testing.T) {
	t.Parallel()
	var ctx context.Context
	c := connect(t, start(t).URL, Options{})
	hold, election := must(c.Lock(background, "k"))(t), c.Election("e")
	leadership := must(election.Campaign(background, "v"))(t)
	for name, call := range map[string]func(){
		"Connect":        func() { c.Connect(ctx) },
		"Info":           func() { c.Info(ctx, "k") },
		"Force":          func() { c.Force(ctx, "k") },
		"ForceFence":     func() { c.ForceFence(ctx, "k", 1) },
		"Close":          func() { c.Close(ctx) },
		"Lock":           func() { c.Lock(ctx, "l") },
		"TryLock":        func() { c.TryLock(ctx, "l") },
		"LockAll":        func() { c.LockAll(ctx, []string{"l"}) },
		"Run":            func() { c.Run(ctx, "l", func(context.Context, *Hold) error { return nil }) },
		"Release":        func() { hold.Release(ctx) },
		"ReleaseAfter":   func() { hold.ReleaseAfter(ctx, time.Second) },
		"ReleasePermits": func() { hold.ReleasePermits(ctx, 1) },
		"Extend":         func() { hold.Extend(ctx, time.Minute) },
		"Upgrade":        func() { hold.Upgrade(ctx) },
		"Downgrade":      func() { hold.Downgrade(ctx) },
		"Campaign":       func() { election.Campaign(ctx, "v") },
		"Leader":         func() { election.Leader(ctx) },
		"Observe":        func() { election.Observe(ctx) },
		"Proclaim":       func() { leadership.Proclaim(ctx, "v") },
		"Resign":         func() { leadership.Resign(ctx) },
	} {
		func() {
			defer func() {
				if why := recover(); why != "rlock: ctx is nil, it must be a context" {
					t.Errorf("%s: %v", name, why)
				}
			}()
			call()
		}()
	}
	done(t, hold.Release(background))
	done(t, leadership.Resign(background))
}

// TestLosses: the client reports each loss at once by the context, and at the end of the block.
func TestLosses(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := connect(t, s.URL, Options{})
	for _, words := range [][]string{{"RLOCK.FORCE", "k"}, {"DEL", "k"}, {"FLUSHALL"}} {
		err := c.Run(background, "k", func(ctx context.Context, hold *Hold) error {
			ask(t, s.port(), words...)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
				t.Errorf("%v: not reported", words)
			}
			is(t, context.Cause(ctx), ErrLost)
			is(t, context.Cause(hold.Context()), ErrLost)
			is(t, hold.Check(), ErrLost)
			return nil
		})
		is(t, err, ErrLost)
	}
	broken := errors.New("of the work")
	is(t, c.Run(background, "k", func(context.Context, *Hold) error { return broken }), broken)
	isTrue(t, isFree(t, s.port(), "k"))
	hold := must(c.Lock(background, "k"))(t)
	done(t, hold.Release(background))
	is(t, hold.Check(), ErrLost)
	is(t, context.Cause(hold.Context()), context.Canceled)
}

// TestEndOfAHold: its context ends when the release begins, not with the answer. A loss before that is its cause.
func TestEndOfAHold(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := connect(t, s.URL, Options{})
	ends := func(hold *Hold, cause error) {
		t.Helper()
		select {
		case <-hold.Context().Done():
		case <-time.After(15 * time.Second):
			t.Fatal("its context goes on")
		}
		is(t, context.Cause(hold.Context()), cause)
	}
	begin := func(end func() error) chan error {
		ended := make(chan error, 1)
		go func() { ended <- end() }()
		return ended
	}
	released, lost := must(c.Lock(background, "released"))(t), must(c.Lock(background, "lost", FixedLease(20*time.Millisecond)))(t)
	for lost.Remaining() > 0 { // No timer has run yet when it ends.
	}
	is(t, lost.Release(background), ErrLost)
	ends(lost, ErrLost)
	done(t, c.Run(background, "k", func(ctx context.Context, hold *Hold) error { return hold.Release(ctx) }))
	looked, left := must(c.Lock(background, "looked"))(t), must(c.Lock(background, "left"))(t)
	within, cancel := context.WithTimeout(looked.Context(), time.Minute)
	defer cancel()
	resume := s.pause(t)
	releases := []chan error{
		begin(func() error { return looked.Release(within) }), begin(func() error { return released.Release(released.Context()) }),
	}
	eventually(t, "the release begins", func() bool { return looked.Context().Err() != nil })
	for _, hold := range []*Hold{looked, released} {
		ends(hold, context.Canceled)
		is(t, hold.Check(), ErrLost)
		isTrue(t, hold.Remaining() == 0)
	}
	done(t, left.Check())
	closes := begin(func() error { return c.Close(left.Context()) })
	ends(left, ErrClosed)
	is(t, left.Check(), ErrClosed)
	resume()
	for _, release := range append(releases, closes) {
		done(t, <-release)
	}
}

// TestContexts: the context ends the wait at once, but not the hold. A release in an ended context still releases.
func TestContexts(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := connect(t, s.URL, Options{})
	type name struct{}
	ctx, cancel := context.WithTimeout(context.WithValue(background, name{}, "ann"), time.Minute)
	hold := must(c.Lock(ctx, "k"))(t)
	cancel()
	isTrue(t, hold.Context().Err() == nil && hold.Context().Value(name{}) == "ann")
	short, cancel := context.WithTimeout(background, 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := c.Lock(short, "k")
	is(t, err, context.DeadlineExceeded)
	isTrue(t, time.Since(began) < time.Second)
	eventually(t, "nobody waits", func() bool { return isQueued(t, s.port(), "k", 0) })
	is(t, hold.Release(ctx), context.Canceled)
	eventually(t, "it is free", func() bool { return isFree(t, s.port(), "k") })
}

// TestContextsOfHolds: the end of a hold by its release or by Close ends no wait for the server. What else ends the context does,
// also later.
func TestContextsOfHolds(t *testing.T) {
	t.Parallel()
	ends := func(t *testing.T, call func() error, cause error) {
		t.Helper()
		began := time.Now()
		is(t, call(), cause)
		isTrue(t, time.Since(began) < 5*time.Second, time.Since(began))
	}
	waits := func(t *testing.T, resume func(), call func() error) {
		t.Helper()
		ended := make(chan error, 1)
		go func() { ended <- call() }()
		select {
		case err := <-ended:
			t.Fatal("it does not wait", err)
		case <-time.After(100 * time.Millisecond):
		}
		resume()
		done(t, <-ended)
	}
	for name, test := range map[string]func(*testing.T, *server, *Client){
		"deadline": func(t *testing.T, s *server, c *Client) {
			for _, call := range []func(*Hold, context.Context) error{
				(*Hold).Release, func(_ *Hold, ctx context.Context) error { return c.Close(ctx) },
			} {
				hold := must(c.Lock(background, "k"))(t)
				resume := s.pause(t)
				ctx, cancel := context.WithTimeout(hold.Context(), 100*time.Millisecond)
				defer cancel()
				ends(t, func() error { return call(hold, ctx) }, context.DeadlineExceeded)
				resume()
			}
		},
		"caller": func(t *testing.T, s *server, c *Client) {
			caller, cancel := context.WithCancelCause(background)
			of := errors.New("of the caller")
			done(t, c.Run(caller, "k", func(ctx context.Context, outer *Hold) error {
				return c.Run(ctx, "l", func(ctx context.Context, hold *Hold) error {
					done(t, outer.Release(ctx))
					resume := s.pause(t)
					time.AfterFunc(100*time.Millisecond, func() { cancel(of) })
					ends(t, func() error { return hold.Release(ctx) }, of)
					resume()
					return nil
				})
			}))
		},
		"without its caller": func(t *testing.T, s *server, c *Client) {
			caller, cancel := context.WithCancel(background)
			done(t, c.Run(caller, "k", func(ctx context.Context, hold *Hold) error {
				cancel()
				rest, cancel := context.WithCancel(context.WithoutCancel(ctx))
				defer cancel()
				other := must(c.Lock(rest, "l"))(t)
				waits(t, s.pause(t), func() error { return hold.Release(rest) })
				waits(t, s.pause(t), func() error { return other.Release(other.Context()) })
				return nil
			}))
		},
		"released before": func(t *testing.T, s *server, c *Client) {
			is(t, c.Run(background, "k", func(ctx context.Context, hold *Hold) error {
				other, left := must(c.Lock(ctx, "l"))(t), must(c.Lock(ctx, "m"))(t)
				done(t, hold.Release(ctx))
				waits(t, s.pause(t), func() error { return other.Release(ctx) })
				waits(t, s.pause(t), func() error { return c.Close(ctx) })
				return left.Check()
			}), ErrClosed)
		},
		"during Close": func(t *testing.T, s *server, c *Client) {
			hold := must(c.Lock(background, "k"))(t)
			resume := s.pause(t)
			closes := make(chan error, 1)
			go func() { closes <- c.Close(background) }()
			<-hold.Context().Done()
			waits(t, resume, func() error { return hold.Release(hold.Context()) })
			done(t, <-closes)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			test(t, s, connect(t, s.URL, Options{}))
		})
	}
}

// TestReleaseOfALoss: a loss that is known is reported in an ended context, too.
func TestReleaseOfALoss(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := connect(t, s.URL, Options{})
	ended, cancel := context.WithCancel(background)
	cancel()
	for _, release := range []func(*Hold) error{
		func(hold *Hold) error { return hold.Release(ended) },
		func(hold *Hold) error { return hold.ReleasePermits(ended, 1) },
	} {
		for range 20 {
			hold := must(c.Lock(background, "p", Permits(2, 2)))(t)
			ask(t, s.port(), "DEL", "p")
			<-hold.Context().Done()
			is(t, release(hold), ErrLost)
		}
	}
	lost, ignored, held := must(c.Lock(background, "l"))(t), must(c.Lock(background, "i", IgnoreLoss()))(t), must(c.Lock(background, "h"))(t)
	for _, hold := range []*Hold{lost, ignored} {
		must(c.Force(background, hold.Keys()[0]))(t)
		<-hold.Context().Done()
	}
	done(t, c.Close(background))
	is(t, lost.Release(background), ErrLost)
	is(t, lost.ReleasePermits(background, 1), ErrLost)
	done(t, ignored.Release(background))
	is(t, held.Release(background), ErrClosed)
}

// TestReleaseTwice: a second call has the outcome of the first, which has not waited for it.
func TestReleaseTwice(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := connect(t, s.URL, Options{})
	hold := must(c.Lock(background, "k"))(t)
	resume := s.pause(t)
	short, cancel := context.WithTimeout(background, 50*time.Millisecond)
	defer cancel()
	is(t, hold.Release(short), context.DeadlineExceeded)
	again, cancel := context.WithTimeout(background, 50*time.Millisecond)
	defer cancel()
	is(t, hold.Release(again), context.DeadlineExceeded)
	resume()
	done(t, hold.Release(background))
	isTrue(t, isFree(t, s.port(), "k"))
	done(t, hold.Release(background))
}

// TestThousands: they share one connection, and need no goroutines.
func TestThousands(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := connect(t, s.URL, Options{})
	done(t, c.Connect(background))
	holds := make([]*Hold, 1000)
	for i := range holds {
		holds[i] = must(c.Lock(background, fmt.Sprint("k", i), Lease(9*time.Second)))(t)
	}
	before := runtime.NumGoroutine()
	var granted sync.WaitGroup
	for i := range holds {
		granted.Go(func() {
			hold, err := c.Lock(background, fmt.Sprint("k", i), Lease(9*time.Second))
			if err == nil {
				err = hold.Release(background)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "they wait", func() bool {
		for i := range holds {
			if i%50 == 0 && !isQueued(t, s.port(), fmt.Sprint("k", i), 1) {
				return false
			}
		}
		return true
	})
	time.Sleep(3500 * time.Millisecond)
	// The goroutines of these waiters, and of other tests.
	isTrue(t, runtime.NumGoroutine() < before+1000+200, before, runtime.NumGoroutine())
	isTrue(t, connections(t, s.port()) == 1)
	for _, hold := range holds {
		done(t, hold.Check())
		done(t, hold.Release(background))
	}
	granted.Wait()
	metrics := must(c.Metrics())(t)
	isTrue(t, metrics.Grants == 2000 && metrics.Losses == 0 && metrics.Reconnects == 0, metrics)
}

func TestAbandoned(t *testing.T) {
	t.Parallel()
	s := start(t)
	holder, c := connect(t, s.URL, Options{}), connect(t, s.URL, Options{})
	hold := must(holder.Lock(background, "k"))(t)
	for round := range 10 {
		ctx, cancel := context.WithCancel(background)
		var all sync.WaitGroup
		for i := range 1000 {
			all.Go(func() {
				hold, err := c.Lock(ctx, []string{"k", "l"}[i%2])
				if err == nil {
					err = hold.Release(background)
				}
				if err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		}
		// Some end before they are connected or sent, some at their grant, the others while they wait.
		time.Sleep(time.Duration(round) * time.Millisecond)
		cancel()
		all.Wait()
	}
	eventually(t, "nothing is left", func() bool { return isQueued(t, s.port(), "k", 0) && isFree(t, s.port(), "l") })
	isTrue(t, connections(t, s.port()) == 2)
	done(t, hold.Release(background))
	c.mu.Lock()
	defer c.mu.Unlock()
	isTrue(t, len(c.calls) == 0, len(c.calls))
}

func TestAbandonedWhileConnecting(t *testing.T) {
	t.Parallel()
	s := start(t)
	n := newNetwork(t, s.port())
	n.delay.Store(int64(20 * time.Millisecond))
	for i := range 30 {
		c := connect(t, n.url, Options{})
		ctx, cancel := context.WithTimeout(background, time.Duration(i)*time.Millisecond)
		_, err := c.Lock(ctx, "k")
		is(t, err, context.DeadlineExceeded)
		cancel()
		done(t, c.Close(background))
	}
	eventually(t, "none is open", func() bool { return n.count() == 0 })
	eventually(t, "it is free", func() bool { return isFree(t, s.port(), "k") })
}

func TestLostReplies(t *testing.T) {
	t.Parallel()
	s := start(t)
	n := newNetwork(t, s.port())
	c := connect(t, n.url, Options{ResponseTimeout: 200 * time.Millisecond})
	held := must(c.Lock(background, "held", Lease(4*time.Second)))(t)
	last := uint64(0)
	for round := range 12 {
		fault := time.AfterFunc(time.Duration(round%3)*time.Millisecond, func() {
			if round%2 == 1 {
				n.cut()
			} else {
				n.isMute.Store(true)
				time.AfterFunc(250*time.Millisecond, func() { n.isMute.Store(false) })
			}
		})
		hold := must(c.Lock(background, "k", Lease(4*time.Second)))(t)
		isTrue(t, hold.Fence() > last && hold.Check() == nil)
		last = hold.Fence()
		done(t, hold.Release(background))
		fault.Stop()
		n.isMute.Store(false)
	}
	done(t, held.Check())
	done(t, held.Release(background))
	eventually(t, "all are free", func() bool { return isFree(t, s.port(), "k") && isFree(t, s.port(), "held") })
}

// TestReleaseMeanwhile: a release succeeds although the server is unreachable for a second.
func TestReleaseMeanwhile(t *testing.T) {
	t.Parallel()
	s := start(t)
	n := newNetwork(t, s.port())
	c := connect(t, n.url, Options{ResponseTimeout: 300 * time.Millisecond})
	hold := must(c.Lock(background, "k"))(t)
	n.isMute.Store(true)
	n.cut()
	time.AfterFunc(time.Second, func() { n.isMute.Store(false) })
	done(t, hold.Release(background))
	isTrue(t, isFree(t, s.port(), "k"))
}

func TestNeverTwo(t *testing.T) {
	t.Parallel()
	s := start(t)
	n := newNetwork(t, s.port())
	var clients []*Client
	for range 2 {
		clients = append(clients, connect(t, n.url, Options{ResponseTimeout: 300 * time.Millisecond}))
		done(t, clients[0].Connect(background))
	}
	stop := make(chan struct{})
	time.AfterFunc(2*time.Second, func() { close(stop) })
	go func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(120 * time.Millisecond):
				n.cut()
			}
		}
	}()
	var inside, grants atomic.Int64
	var all sync.WaitGroup
	for _, c := range clients {
		for range 4 {
			all.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					hold, err := c.Lock(background, "k", Lease(5*time.Second))
					if err != nil {
						t.Error(err)
						return
					}
					if inside.Add(1) != 1 {
						t.Error("two are inside")
					}
					grants.Add(1)
					time.Sleep(time.Millisecond)
					if err := hold.Check(); err != nil {
						t.Error(err)
					}
					inside.Add(-1)
					if err := hold.Release(background); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	all.Wait()
	isTrue(t, grants.Load() > 20, grants.Load())
}

// TestPausedServer: a paused server ends no wait late, and its requests leave nothing.
func TestPausedServer(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := connect(t, s.URL, Options{ResponseTimeout: 500 * time.Millisecond, RetryTimeout: time.Second})
	hold := must(c.Lock(background, "k", Lease(time.Second)))(t)
	resume := s.pause(t)
	began := time.Now()
	_, err := c.Lock(background, "l", Wait(500*time.Millisecond))
	isTrue(t, err != nil && time.Since(began) < 2500*time.Millisecond, err, time.Since(began))
	time.Sleep(time.Until(began.Add(1100 * time.Millisecond)))
	is(t, hold.Check(), ErrLost)
	isTrue(t, hold.Context().Err() != nil)
	resume()
	eventually(t, "nothing is left", func() bool { return isFree(t, s.port(), "k") && isFree(t, s.port(), "l") })
}

// TestFirstLock: a new process takes its first lock soon. The race detector needs most of that time, and a busy machine three
// times as much. An engine that is compiled at the start took 300 ms without either.
func TestFirstLock(t *testing.T) {
	t.Parallel()
	if url := os.Getenv("RLOCK_FIRST"); url != "" {
		done(t, must(connect(t, url, Options{}).Lock(background, "k"))(t).Release(background))
		return
	}
	child := exec.Command(os.Args[0], "-test.run=TestFirstLock$")
	child.Env = append(os.Environ(), "RLOCK_FIRST="+start(t).URL)
	output, err := child.CombinedOutput()
	isTrue(t, err == nil, err, string(output))
	spent := child.ProcessState.UserTime() + child.ProcessState.SystemTime()
	isTrue(t, spent < 250*time.Millisecond, spent)
	t.Log(spent)
}

// TestPausedProcess: a process that was paused beyond its lease learns of the loss at its first check.
func TestPausedProcess(t *testing.T) {
	t.Parallel()
	if url := os.Getenv("RLOCK_STOPPED"); url != "" {
		c := connect(t, url, Options{})
		hold := must(c.Lock(background, "k", Lease(time.Second)))(t)
		began := time.Now() // Before it can be stopped.
		fmt.Println("it holds")
		for last := began; time.Since(began) < time.Minute; {
			this := time.Now()
			if this.Sub(last) > 1500*time.Millisecond {
				isTrue(t, hold.Context().Err() != nil, "its context goes on")
				is(t, hold.Check(), ErrLost)
				is(t, hold.Release(background), ErrLost)
				return
			}
			last = this
		}
		t.Fatal("nobody stopped it")
	}
	s := start(t)
	child := exec.Command(os.Args[0], "-test.run=TestPausedProcess$")
	child.Env = append(os.Environ(), "RLOCK_STOPPED="+s.URL)
	output := bufio.NewReader(must(child.StdoutPipe())(t))
	done(t, child.Start())
	isTrue(t, must(output.ReadString('\n'))(t) == "it holds\n")
	child.Process.Signal(syscall.SIGSTOP)
	time.Sleep(2 * time.Second)
	child.Process.Signal(syscall.SIGCONT)
	rest := must(io.ReadAll(output))(t)
	if err := child.Wait(); err != nil {
		t.Fatal(err, string(rest))
	}
}

func TestRestart(t *testing.T) {
	t.Parallel()
	s, other := start(t), start(t)
	n := newNetwork(t, s.port())
	c := connect(t, n.url, Options{})
	hold := must(c.Lock(background, "k"))(t)
	waits := inBackground(func() (*Hold, error) { return c.Lock(background, "k", Lease(time.Second)) })
	eventually(t, "it waits", func() bool { return isQueued(t, s.port(), "k", 1) })
	// From now on, another server without any locks is at the address.
	n.target.Store(int64(other.port()))
	n.cut()
	next := waits(t)
	is(t, hold.Release(background), ErrLost)
	done(t, next.Release(background))
}

func TestFailOver(t *testing.T) {
	t.Parallel()
	s := start(t, "sentinel", "--sentinels", "1")
	n := newNetwork(t, s.port())
	watched, single := connect(t, s.URL, Options{}), connect(t, n.url, Options{ResponseTimeout: 500 * time.Millisecond})
	hold := must(watched.Lock(background, "k", Lease(time.Minute)))(t)
	observers := []func() (Change, error){observer(t, watched, "e"), observer(t, single, "e")}
	for _, next := range observers {
		isTrue(t, shown(next()) == "nobody false")
	}
	leadership := must(watched.Election("e").Campaign(background, "before", Lease(time.Minute)))(t)
	behind := must(single.Lock(background, "l", Lease(time.Minute)))(t)
	replica := s.Servers[1].Port
	eventually(t, "the replica knows", func() bool { return !isFree(t, replica, "l") })
	// For a while, the addresses lead to a replica, which answers READONLY.
	ask(t, s.port(), "REPLICAOF", "127.0.0.1", fmt.Sprint(replica))
	ended := make(chan error, 2)
	go func() { ended <- behind.Release(background) }()
	go func() { ended <- leadership.Proclaim(background, "after") }()
	time.Sleep(50 * time.Millisecond)
	ask(t, replica, "REPLICAOF", "NO", "ONE")
	ask(t, s.port(), "REPLICAOF", "NO", "ONE")
	done(t, <-ended)
	done(t, <-ended)
	done(t, hold.Check())
	for _, next := range observers {
		for seen := ""; seen != "after"; {
			change, err := next()
			done(t, err)
			if change.Leader != nil {
				isTrue(t, change.Leader.Fence == leadership.Fence(), change)
				seen = change.Leader.Value
			}
		}
	}
}

func TestCluster(t *testing.T) {
	t.Parallel()
	s := start(t, "cluster", "--nodes", "3")
	c := connect(t, s.URL, Options{})
	var keys []string
	var holds []*Hold
	for i := range 30 {
		keys = append(keys, fmt.Sprint("key:", i))
		holds = append(holds, must(c.Lock(background, keys[i]))(t))
	}
	_, err := c.LockAll(background, keys[:2], Wait(50*time.Millisecond))
	is(t, err, ErrNotAcquired)
	for _, hold := range holds {
		done(t, hold.Release(background))
	}
	all := must(c.LockAll(background, keys))(t)
	isTrue(t, len(all.Fences()) == 30)
	done(t, all.Release(background))
	for _, key := range keys {
		next, election := observer(t, c, key), c.Election(key)
		isTrue(t, shown(next()) == "nobody false")
		leadership := must(election.Campaign(background, key))(t)
		isTrue(t, shown(next()) == key+" false")
		isTrue(t, must(election.Leader(background))(t).Fence == leadership.Fence())
		done(t, leadership.Resign(background))
		isTrue(t, shown(next()) == "nobody false")
	}
}

// warnings collects the lines of the default logger.
type warnings struct {
	mu    sync.Mutex
	lines []string
}

func (w *warnings) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, string(line))
	return len(line), nil
}

func (w *warnings) with(text string) (found []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, line := range w.lines {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// It is not parallel: it replaces the default logger.
func TestUnreachable(t *testing.T) {
	before, seen := slog.Default(), &warnings{}
	slog.SetDefault(slog.New(slog.NewTextHandler(seen, nil)))
	defer slog.SetDefault(before)
	free := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	free.Close()
	s := start(t)
	ask(t, s.port(), "CONFIG", "SET", "requirepass", "secret")
	for _, it := range []struct{ login, address, reason string }{
		{"", free.Addr().String(), "refused"},
		{"", fmt.Sprintf("127.0.0.1:%d", s.port()), "NOAUTH"},
		{":wrong@", fmt.Sprintf("127.0.0.1:%d", s.port()), "WRONGPASS"},
	} {
		c := connect(t, "redis://"+it.login+it.address, Options{})
		ctx, cancel := context.WithTimeout(background, time.Second) // Several attempts.
		_, err := c.Lock(ctx, "invoice:7")
		cancel()
		is(t, err, context.DeadlineExceeded)
		c.Close(ctx)
		lines := seen.with(it.address)
		isTrue(t, len(lines) == 1 && strings.Contains(lines[0], it.reason), it.reason, lines)
		isTrue(t, strings.Contains(lines[0], "level=WARN") && strings.Contains(lines[0], "trying again"), lines)
		seen.lines = nil
	}
}

func TestRights(t *testing.T) {
	t.Parallel()
	s := start(t)
	ask(t, s.port(), "ACL", "SETUSER", "few", "on", ">p", "~other:*", "&rlock:client:*", "+@all")
	c := connect(t, fmt.Sprintf("redis://few:p@127.0.0.1:%d", s.port()), Options{})
	for _, it := range []struct{ key, words, rule string }{
		{"invoice:7", "'invoice:7'", " ~invoice:*: see docs/operating.md"},
		{"other:7", "'rlock.acquire'", " +rlock.acquire: see docs/operating.md"},
	} {
		_, err := c.Lock(background, it.key)
		is(t, err, ErrDenied)
		isTrue(t, strings.Contains(err.Error(), it.words) && strings.Contains(err.Error(), it.rule), err)
		ask(t, s.port(), "ACL", "SETUSER", "few", "-rlock.acquire")
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	s := start(t, "one", "--tls")
	err := connect(t, s.TLS.URL, Options{RetryTimeout: time.Second}).Connect(background)
	isTrue(t, err != nil && strings.Contains(err.Error(), "certificate"), err)
	authority := must(os.ReadFile(s.TLS.Authority))(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	c := connect(t, s.TLS.URL, Options{TLS: &tls.Config{RootCAs: roots}})
	done(t, must(c.Lock(background, "k"))(t).Release(background))
}

func TestClose(t *testing.T) {
	t.Parallel()
	s := start(t)
	var log bytes.Buffer
	var mu sync.Mutex
	logger := slog.New(slog.NewTextHandler(writes(func(line []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return log.Write(line)
	}), nil))
	c := connect(t, s.URL, Options{Logger: logger})
	hold := must(c.Lock(background, "k"))(t)
	waits := make(chan error, 1)
	go func() {
		_, err := c.Lock(background, "k")
		waits <- err
	}()
	eventually(t, "it waits", func() bool { return isQueued(t, s.port(), "k", 1) })
	done(t, c.Close(background))
	is(t, <-waits, ErrClosed)
	isTrue(t, hold.Remaining() == 0 && isFree(t, s.port(), "k"))
	is(t, context.Cause(hold.Context()), ErrClosed)
	_, err := c.Lock(background, "k")
	is(t, err, ErrClosed)
	eventually(t, "no connection", func() bool { return connections(t, s.port()) == 0 })
	mu.Lock()
	defer mu.Unlock()
	isTrue(t, strings.Contains(log.String(), "connected to the server"), log.String())
}

// TestCloseWithAnEndedContext: the server takes all releases, of which it reads a part at a time.
func TestCloseWithAnEndedContext(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(background)
	cancel()
	for _, kind := range []string{"TCP", "TLS", "no CloseWrite"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s, options := start(t, "one", "--tls"), Options{TLS: &tls.Config{InsecureSkipVerify: true}}
			url := s.URL
			switch kind {
			case "TLS":
				url = s.TLS.URL
			case "no CloseWrite":
				options.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
					socket, err := new(net.Dialer).DialContext(ctx, network, address)
					return struct{ net.Conn }{socket}, err
				}
			}
			c := connect(t, url, options)
			var all sync.WaitGroup
			for i := range 500 {
				all.Go(func() {
					if _, err := c.Lock(background, fmt.Sprint("k", i), Lease(time.Hour)); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			resume := s.pause(t)
			time.AfterFunc(200*time.Millisecond, resume)
			_ = c.Close(ended) // Its error depends on what it sees first.
			eventually(t, "all are released", func() bool { return ask(t, s.port(), "DBSIZE") == ":0\r\n" })
		})
	}
}

// TestCloseWithAnEndedContextAndAListener: the waits for the server and for the listener share a second.
func TestCloseWithAnEndedContextAndAListener(t *testing.T) {
	t.Parallel()
	s := start(t)
	blocks := make(chan struct{})
	t.Cleanup(func() { close(blocks) })
	c := connect(t, s.URL, Options{Listener: func(Occurrence) { <-blocks }})
	must(c.Lock(background, "k"))(t)
	s.pause(t)
	ended, cancel := context.WithCancel(background)
	cancel()
	began := time.Now()
	is(t, c.Close(ended), context.Canceled)
	isTrue(t, time.Since(began) < 1900*time.Millisecond, time.Since(began))
}

// TestCloseBehindRequests: what waits for the answer to another request is released, too.
func TestCloseBehindRequests(t *testing.T) {
	t.Parallel()
	s := start(t, "one")
	ended, cancel := context.WithCancel(background)
	cancel()
	other := connect(t, s.URL, Options{})
	for name, request := range map[string]func(*Client, *Activity, *Hold){
		"upgrade that waits":     func(_ *Client, _ *Activity, hold *Hold) { hold.Upgrade(background) },
		"extension":              func(_ *Client, _ *Activity, hold *Hold) { hold.Extend(background, time.Hour) },
		"call of the same owner": func(c *Client, in *Activity, _ *Hold) { c.Lock(background, "k", Shared(), In(in)) },
	} {
		reader := must(other.Lock(background, "k", Shared()))(t)
		c := connect(t, s.URL, Options{})
		in := c.Activity()
		hold := must(c.Lock(background, "k", Shared(), In(in), Lease(time.Hour)))(t)
		resume := func() {}
		if !strings.Contains(name, "waits") {
			resume = s.pause(t)
		}
		go request(c, in, hold)
		if strings.Contains(name, "waits") {
			eventually(t, "it waits", func() bool { return isQueued(t, s.port(), "k", 1) })
		} else {
			time.Sleep(50 * time.Millisecond)
		}
		time.AfterFunc(100*time.Millisecond, resume)
		_ = c.Close(ended) // Its error depends on what it sees first.
		done(t, reader.Release(background))
		eventually(t, name+" leaves nothing", func() bool { return isFree(t, s.port(), "k") })
	}
}

// TestCloses: the calls end together, when the context of one of them ends, and have the same error.
func TestCloses(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, isFirst := range []bool{true, false} {
		c := connect(t, s.URL, Options{})
		hold := must(c.Lock(background, "k"))(t)
		resume := s.pause(t)
		ctx, cancel := context.WithCancel(background)
		contexts := []context.Context{background, background}
		if isFirst {
			contexts[0] = ctx
		} else {
			contexts[1] = ctx
		}
		closes := make(chan error, 2)
		go func() { closes <- c.Close(contexts[0]) }()
		eventually(t, "the first one begins", func() bool { return hold.Context().Err() != nil })
		go func() { closes <- c.Close(contexts[1]) }()
		select {
		case err := <-closes:
			t.Fatal(err)
		case <-time.After(20 * time.Millisecond):
		}
		cancel()
		eventually(t, "it does not wait for the server", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.isClosed
		})
		resume()
		for range 2 {
			is(t, <-closes, context.Canceled)
		}
		is(t, c.Close(background), context.Canceled)
		eventually(t, "it is free", func() bool { return isFree(t, s.port(), "k") })
	}
}

// TestErrorsOfDial: the text may have bytes of a peer, and a logger may panic. So may the functions of the options.
func TestErrorsOfDial(t *testing.T) {
	t.Parallel()
	logger := slog.New(slog.NewTextHandler(writes(func([]byte) (int, error) { panic("full") }), nil))
	for _, it := range []struct {
		text string
		dial func(context.Context, string, string) (net.Conn, error)
	}{
		{"refused: \uFFFD", func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("refused: \xff") }},
		{"no connection", func(context.Context, string, string) (net.Conn, error) { return nil, nil }},
		{"no connection", func(context.Context, string, string) (net.Conn, error) { return (*tls.Conn)(nil), nil }},
		{"panicked", func(context.Context, string, string) (net.Conn, error) { panic("of Dial") }},
	} {
		c := connect(t, "redis://127.0.0.1:1", Options{Logger: logger, RetryTimeout: 100 * time.Millisecond, Dial: it.dial})
		err := c.Connect(background)
		isTrue(t, err != nil && strings.Contains(err.Error(), it.text), it.text, err)
	}
	verify := func([][]byte, [][]*x509.Certificate) error { panic("of TLS") }
	options := Options{
		Logger: logger, RetryTimeout: 100 * time.Millisecond, TLS: &tls.Config{InsecureSkipVerify: true, VerifyPeerCertificate: verify},
	}
	err := connect(t, start(t, "one", "--tls").TLS.URL, options).Connect(background)
	isTrue(t, err != nil && strings.Contains(err.Error(), "panicked"), err)
}

type writes func([]byte) (int, error)

func (w writes) Write(line []byte) (int, error) { return w(line) }

// encoded writes a recorded event by the generated function for its kind. Go evaluates arguments in their order.
func encoded(fields [][3]any, number func(any) uint64) (event writer) {
	next := func() any {
		value := fields[0][2]
		fields = fields[1:]
		return value
	}
	n := func() uint64 { return number(next()) }
	n8, n32, is := func() uint8 { return uint8(n()) }, func() uint32 { return uint32(n()) }, func() bool { return n() == 1 }
	text := func() string { return next().(string) }
	list := func() (items []string) {
		for _, item := range next().([]any) {
			items = append(items, item.(string))
		}
		return items
	}
	wanted := func() wantedForm {
		return wantedForm{ownerForm{n8(), n(), text()}, list(), modeForm{n8(), n32(), n32()}}
	}
	terms := func() termsForm { return termsForm{n(), is(), n(), n(), uint16(n()), n()} }
	switch kind := n(); kind {
	case 1:
		event.connect(n())
	case 2:
		event.lock(n(), wanted(), n(), terms())
	case 3:
		event.release(n(), n(), n())
	case 4:
		event.upgrade(n(), n(), n())
	case 5:
		event.extend(n(), n(), n())
	case 6:
		event.downgrade(n(), n())
	case 7:
		event.question(n(), text(), list(), is(), n())
	case 8:
		event.abandon(n())
	case 10:
		event.opened(n())
	case 11:
		event.received(n(), []byte(text()))
	case 12:
		event.ended(n(), n8(), text())
	case 13:
		event.flush(n())
	case 14:
		event.leaveAll()
	case 15:
		event.closed()
	case 16:
		event.tick()
	case 19:
		event.campaign(n(), wanted(), n(), terms(), text())
	case 20:
		event.proclaim(n(), n(), text())
	case 21:
		event.observe(n(), text())
	case 22:
		event.leader(n(), text())
	default:
		panic(fmt.Sprintf("event %d is not known here", kind))
	}
	return event
}

// TestRecord: events are encoded and actions are decoded as in a recorded run, and the engine does the same as in that run.
func TestRecord(t *testing.T) {
	t.Parallel()
	file := os.Getenv("RLOCK_RUN")
	if file == "" {
		file = "../../crates/rlock-embed/tests/host/run.json"
	}
	var record struct {
		Configuration struct{ Bytes string }
		Steps         []struct {
			Fields   [][3]any
			Event    string
			Now      json.Number
			Output   string
			Deadline *json.Number
			Actions  []map[string]any
		}
	}
	decoder := json.NewDecoder(bytes.NewReader(must(os.ReadFile(file))(t)))
	decoder.UseNumber()
	done(t, decoder.Decode(&record))
	names := map[uint8]string{
		acConnect: "connect", acWrite: "write", acClose: "close", acGranted: "granted", acRefused: "refused", acDone: "done",
		acFailed: "failed", acAnswered: "answered", acOver: "over", acNote: "note", acLeader: "leader",
		acOccurred: "occurred",
	}
	number := func(value any) uint64 {
		if value == nil {
			return none
		}
		var n uint64
		fmt.Sscan(value.(json.Number).String(), &n)
		return n
	}
	isTrue(t, len(record.Steps) > 20)
	again := engine{machine: translated.New(), event: must(hex.DecodeString(record.Configuration.Bytes))(t)}
	again.passInput()
	isTrue(t, again.machine.Xrlock_open() == 0)
	for _, step := range record.Steps {
		event := encoded(step.Fields, number)
		again.event = append(again.event, event...)
		done := hex.EncodeToString(again.handleEvent(time.Duration(number(step.Now))))
		isTrue(t, done == step.Output, step.Fields, done)
		isTrue(t, hex.EncodeToString(event) == step.Event, step.Fields)
		output := reader(must(hex.DecodeString(step.Output))(t))
		deadline := uint64(math.MaxUint64)
		if step.Deadline != nil {
			deadline = number(*step.Deadline)
		}
		isTrue(t, output.u64() == deadline)
		for _, shown := range step.Actions {
			a := output.action()
			name := names[a.kind]
			if name == "leader" {
				isTrue(t, number(shown["call"]) == a.call && shown["missed"] == a.missed, shown)
				leader, leads := shown[name].([]any)
				isTrue(t, leads == (a.leader != nil), shown)
				if leads {
					isTrue(t, number(leader[0]) == a.leader.fence && leader[1] == a.leader.value && leader[2] == a.leader.owner, shown)
					isTrue(t, number(leader[3]) == a.leader.timeLeft, shown)
				}
			} else if name == "note" {
				isTrue(t, number(shown[name]) == uint64(a.level) && shown["text"] == a.text, shown)
			} else {
				isTrue(t, slices.Contains([]uint64{a.connection, a.call, a.guard}, number(shown[name])), shown, a)
			}
			if name == "occurred" {
				known := []any{a.what, a.outcome, json.Number(fmt.Sprint(a.nanoseconds)), fmt.Sprint(a.keys), a.text}
				told := []any{shown["what"], shown["outcome"], shown["nanoseconds"], fmt.Sprint(shown["keys"]), shown["text"]}
				isTrue(t, slices.Equal(known, told), shown, a)
			}
			if name == "write" {
				isTrue(t, shown["bytes"] == string(a.bytes), shown)
			}
			if name == "failed" {
				isTrue(t, shown["code"] == a.code, shown)
			}
			if name == "granted" {
				for _, pair := range shown["fences"].([]any) {
					isTrue(t, a.fences[pair.([]any)[0].(string)] == number(pair.([]any)[1]), shown)
				}
			}
		}
		isTrue(t, len(output) == 0)
	}
}

// TestReadme: each program of both READMEs runs unchanged, in a separate module.
func TestReadme(t *testing.T) {
	t.Parallel()
	s := start(t)
	var members []string
	for number := range 3 { // They forget nothing, so they need no grace.
		member := start(t, "one", "--set", "appendonly yes", "--set", "appendfsync always")
		members = append(members, fmt.Sprintf("redis://locks-%d", number+1), strings.TrimSuffix(member.URL, "/"))
	}
	addresses := strings.NewReplacer(append(members, "redis://127.0.0.1:6379", s.URL)...)
	readmes := string(must(os.ReadFile("README.md"))(t)) + string(must(os.ReadFile("../../README.md"))(t))
	programs := regexp.MustCompile("(?s)```go\n(package main.*?)```").FindAllStringSubmatch(readmes, -1)
	isTrue(t, len(programs) == 5)
	for _, program := range programs {
		run := exec.Command("go", "run", "-race", ".") // As the tests: the engine is compiled once.
		run.Dir = ofOwnModule(t, addresses.Replace(program[1]))
		output, err := run.CombinedOutput()
		isTrue(t, err == nil && regexp.MustCompile("under fence|nobody leads").Match(output), err, string(output))
	}
}
