package rlock

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// heard is what a listener has heard.
type heard struct {
	mu  sync.Mutex
	all []Occurrence
}

func (h *heard) listener(it Occurrence) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, it)
}

// of returns those of these kinds, each as its outcome or its text, with its keys.
func (h *heard) of(kinds ...string) (found []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, it := range h.all {
		if slices.Contains(kinds, it.Kind) {
			found = append(found, fmt.Sprint(it.Kind, " ", it.Outcome, it.Text, it.Keys))
		}
	}
	return found
}

func (h *heard) first(kind string) Occurrence {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.all[slices.IndexFunc(h.all, func(it Occurrence) bool { return it.Kind == kind })]
}

func TestListener(t *testing.T) {
	t.Parallel()
	s := start(t)
	var h heard
	c := must(NewClient(s.URL, Options{Listener: h.listener}))(t)
	hold := must(c.LockAll(background, []string{"a", "b"}))(t)
	_, err := c.TryLock(background, "a")
	is(t, err, ErrNotAcquired)
	_, err = c.Lock(background, "a", Wait(50*time.Millisecond))
	is(t, err, ErrNotAcquired)
	short, cancel := context.WithTimeout(background, 50*time.Millisecond)
	defer cancel()
	_, err = c.Lock(short, "a")
	is(t, err, context.DeadlineExceeded)
	_, err = c.Lock(background, "")
	is(t, err, ErrOutOfRange)
	done(t, hold.Release(background))
	lost := must(c.Lock(background, "k"))(t)
	must(c.Force(background, "k"))(t)
	<-lost.Context().Done()
	must(c.Lock(background, "l"))(t)
	waits := make(chan error, 1)
	go func() {
		_, err := c.Lock(background, "l")
		waits <- err
	}()
	eventually(t, "it waits", func() bool { return isQueued(t, s.port(), "l", 1) })
	done(t, c.Close(background))
	is(t, <-waits, ErrClosed)
	// The listener has heard of all when Close returns.
	told, expected := h.of("connected", "wait", "hold"), []string{
		fmt.Sprintf("connected 127.0.0.1:%d[]", s.port()), "wait granted[a b]", "wait refused[a]", "wait refused[a]",
		"wait abandoned[a]", "hold released[a b]", "wait granted[k]", "hold ended_by_server[k]", "wait granted[l]",
	}
	isTrue(t, slices.Equal(told[:min(len(told), len(expected))], expected), told)
	rest := slices.Sorted(slices.Values(told[len(expected):]))
	isTrue(t, slices.Equal(rest, []string{"hold closed[l]", "wait Closed[l]"}), rest)

	held := h.first("hold")
	isTrue(t, held.Duration >= 100*time.Millisecond && held.Duration < time.Minute, held)
	held.Keys = []string{"secret"}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("heard", "it", held)
	written := must(json.Marshal(held))(t)
	shown := fmt.Sprintf("%v %+v %#v %s %s", held, held, held, written, &log)
	isTrue(t, strings.Count(shown, "released") == 5 && !strings.Contains(shown, "secret"), shown)
}

// TestListenerWithClose: the listener hears of what ends just before Close before that returns, one after the other.
func TestListenerWithClose(t *testing.T) {
	t.Parallel()
	s := start(t)
	for range 50 {
		var c *Client
		var inside, count atomic.Int32
		c = must(NewClient(s.URL, Options{Listener: func(it Occurrence) {
			if inside.Add(1) > 1 {
				t.Error("two at once")
			}
			c.Metrics()
			if it.Kind == "hold" {
				count.Add(1)
			}
			inside.Add(-1)
		}}))(t)
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				hold, err := c.Lock(background, fmt.Sprint(i))
				if err != nil || hold.Release(background) != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		done(t, c.Close(background))
		isTrue(t, count.Load() == 4, count.Load())
	}
	n := newNetwork(t, s.port())
	var h heard
	c := must(NewClient(n.url, Options{Listener: h.listener}))(t)
	hold := must(c.Lock(background, "k"))(t)
	n.isMute.Store(true)
	short, cancel := context.WithTimeout(background, 100*time.Millisecond)
	defer cancel()
	is(t, hold.Release(short), context.DeadlineExceeded)
	is(t, c.Close(short), context.DeadlineExceeded)
	isTrue(t, slices.Equal(h.of("hold"), []string{"hold Closed[k]"}), h.of("hold"))
}

// TestListenerIsNoCaller: the listener may wait for what a caller holds, and for the client.
func TestListenerIsNoCaller(t *testing.T) {
	t.Parallel()
	s := start(t)
	var mu sync.Mutex
	var c *Client
	inside := make(chan error, 1)
	c = connect(t, s.URL, Options{Listener: func(it Occurrence) {
		mu.Lock()
		defer mu.Unlock()
		if it.Kind == "hold" && it.Keys[0] == "k" {
			hold, err := c.Lock(background, "l")
			if err == nil {
				err = hold.Release(background)
			}
			inside <- err
		}
	}})
	hold := must(c.Lock(background, "k"))(t)
	waited := make(chan error, 1)
	go func() {
		mu.Lock()
		defer mu.Unlock()
		short, cancel := context.WithTimeout(background, 50*time.Millisecond)
		defer cancel()
		_, err := c.Lock(short, "k")
		waited <- err
	}()
	for _, expected := range []struct {
		ended chan error
		with  error
	}{{waited, context.DeadlineExceeded}, {inside, nil}} {
		select {
		case err := <-expected.ended:
			is(t, err, expected.with)
		case <-time.After(5 * time.Second):
			t.Fatal("it waits for itself")
		}
		go hold.Release(background)
	}
}

// TestCallbacksAreForgotten: a callback takes no memory after its call.
func TestCallbacksAreForgotten(t *testing.T) {
	t.Parallel()
	s := start(t)
	var told, forgotten atomic.Int32
	c := connect(t, s.URL, Options{Listener: func(it Occurrence) {
		if len(it.Keys) == 0 {
			return
		}
		told.Add(1)
		runtime.AddCleanup(&it.Keys[0], func(int) { forgotten.Add(1) }, 0)
		time.Sleep(time.Millisecond) // Others come meanwhile.
	}})
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() { must(c.Lock(background, fmt.Sprint(i)))(t).Release(background) })
	}
	all.Wait()
	eventually(t, "they are forgotten", func() bool {
		runtime.GC()
		return told.Load() == 200 && forgotten.Load() == 200
	})
}

// TestOnRisk: the function of each hold is called before the loss, once until a renewal succeeds.
func TestOnRisk(t *testing.T) {
	t.Parallel()
	s := start(t)
	n := newNetwork(t, s.port())
	var h heard
	var log lockedBuffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	listening := connect(t, n.url, Options{Logger: logger, Listener: h.listener})
	c := connect(t, n.url, Options{Logger: logger})
	one := c.Activity()
	var outer, inner, heardToo atomic.Int32
	risk := func(count *atomic.Int32) Option {
		return OnRisk(func(left time.Duration) {
			if count.Add(1); left <= 0 || left > time.Second {
				t.Error(left)
			}
		})
	}
	lease := Lease(2 * time.Second)
	holds := []*Hold{
		must(c.Lock(background, "k", lease, In(one), risk(&outer)))(t),
		must(c.Lock(background, "k", lease, In(one), risk(&inner)))(t),
		must(c.Lock(background, "l", lease))(t),
		must(c.Lock(background, "m", lease, OnRisk(func(time.Duration) { panic("a mistake") })))(t),
		must(listening.Lock(background, "w", lease, risk(&heardToo)))(t),
	}
	for round := range int32(2) {
		n.isMute.Store(false)
		n.cut()
		for _, hold := range holds {
			done(t, hold.Extend(background, 2*time.Second))
		}
		n.isMute.Store(true)
		eventually(t, "they are at risk", func() bool {
			return outer.Load() > round && inner.Load() > round && heardToo.Load() > round
		})
	}
	for _, hold := range holds {
		<-hold.Context().Done()
	}
	eventually(t, "the listener hears of the end", func() bool { return len(h.of("hold")) == 1 })
	isTrue(t, outer.Load() == 2 && inner.Load() == 2 && heardToo.Load() == 2, &outer, &inner, &heardToo)
	told := h.of("at_risk", "hold")
	isTrue(t, slices.Equal(told, []string{"at_risk [w]", "at_risk [w]", "hold lease_ended[w]"}), told)
	isTrue(t, strings.Count(log.String(), "the function of OnRisk has panicked: a mistake") == 2, log.String())
}

// TestListenerPanics: a listener that panics changes nothing else.
func TestListenerPanics(t *testing.T) {
	t.Parallel()
	s := start(t)
	var log lockedBuffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	c := connect(t, s.URL, Options{Logger: logger, Listener: func(it Occurrence) { panic("a mistake at " + it.Kind) }})
	for range 3 {
		done(t, must(c.Lock(background, "k"))(t).Release(background))
	}
	done(t, c.Close(background))
	for _, kind := range []string{"connected", "wait", "hold"} {
		isTrue(t, strings.Contains(log.String(), "level=ERROR msg=\"rlock: the function of Listener has panicked: a mistake at "+kind), log.String())
	}
	isTrue(t, strings.Contains(log.String(), "occurrence_test.go"), "the place is in it")
}

type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(line []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(line)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}
