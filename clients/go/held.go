package rlock

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Held is a lock that is held, and renewed in the background until Release.
type Held struct {
	locks   *Locks
	request *request
	fence   int64
	context context.Context
	cancel  context.CancelCauseFunc
	over    chan struct{} // Closed by the loss or the release.

	mu    sync.Mutex
	until time.Time // The server cannot grant the lock to others before.
	end   *time.Timer
	lost  bool
	ended bool
}

func (l *Locks) hold(ctx context.Context, r *request, fence int64, sent time.Time) *Held {
	h := &Held{locks: l, request: r, fence: fence, until: r.until(sent), over: make(chan struct{})}
	h.context, h.cancel = context.WithCancelCause(ctx)
	h.end = time.AfterFunc(time.Until(h.until), func() { _ = h.Check() })
	go h.keep(sent)
	return h
}

// Fence is the fencing token: greater than that of every earlier holder. Send it along with each write.
func (h *Held) Fence() int64 { return h.fence }

// Keys are the keys that are held.
func (h *Held) Keys() []string { return append([]string(nil), h.request.keys...) }

// Owner is the name under which the server knows the holder.
func (h *Held) Owner() string { return h.request.owner }

// Context is made from the one given to Lock. It is cancelled by Release, and with the cause ErrLost when the lock is lost:
// before the server can grant it to others if the lease has run out, within a third of the lease if somebody ended it.
func (h *Held) Context() context.Context { return h.context }

// Check is nil while the lock is held, ErrLost from its loss on, and another error after Release. It asks no server.
func (h *Held) Check() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ended && !time.Now().Before(h.until) {
		h.lost = true
		h.finish(ErrLost)
	}
	switch {
	case h.lost:
		return ErrLost
	case h.ended:
		return fmt.Errorf("rlock: the lock is released")
	}
	return nil
}

// Release gives the lock back; the next waiter then holds it. A second one, and one after the loss, does no harm.
// It is repeated until the server has answered. After 5 s without an answer it is an error, and the lease ends by itself.
func (h *Held) Release() error {
	h.mu.Lock()
	h.finish(context.Canceled)
	h.mu.Unlock()
	late := time.After(margin)
	last := fmt.Errorf("no answer within %v", margin)
	key, args := h.request.releasing()
	for {
		again := time.After(time.Second) // On another connection, if one of them is silent.
		select {
		case got := <-send(h.locks.client, key, args):
			if !passes(got.err) {
				if got.err != nil {
					return wrap(got.err)
				}
				return nil
			}
			last, again = got.err, time.After(100*time.Millisecond)
		case <-again:
			continue
		case <-late:
			return wrap(last)
		}
		select {
		case <-again:
		case <-late:
			return wrap(last)
		}
	}
}

// finish needs the lock of h.
func (h *Held) finish(cause error) {
	if !h.ended {
		h.ended = true
		h.end.Stop()
		close(h.over)
		h.cancel(cause)
	}
}

func (h *Held) keep(sent time.Time) {
	third := h.request.lease / 3
	for pause := time.Until(sent.Add(third)); ; pause = third {
		select {
		case <-h.over:
			return
		case <-time.After(pause):
		}
		for again := true; again; {
			sent := time.Now()
			select {
			case <-h.over:
				return
			case got := <-h.locks.renewed(h.request, h.fence):
				again = got.err != nil
				h.told(got, sent)
			case <-time.After(max(third/2, time.Millisecond)): // On another connection, if that one is silent.
				continue
			}
			if again {
				select {
				case <-h.over:
					return
				case <-time.After(max(third/10, time.Millisecond)):
				}
			}
		}
	}
}

// told takes in the answer to a renewal that was sent then.
func (h *Held) told(got reply, sent time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.ended || got.err != nil:
	case got.fence == 0:
		h.lost = true
		h.finish(ErrLost)
	default:
		h.until = h.request.until(sent)
		h.end.Reset(time.Until(h.until))
	}
}
