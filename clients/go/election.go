package rlock

import (
	"context"
	"iter"
	"math"
	"slices"
	"time"
)

// changesMax is the number of changes that an observer keeps.
const changesMax = 1024

// Election is the right to lead at a key. One owner at a time has it, first come, first served, and publishes a value, such
// as its address. It is the lock at the key: a holder that did not campaign keeps candidates waiting, but is not a leader.
type Election struct {
	client  *Client
	key     string
	options []Option
}

// Election returns the election at a key. The options apply to each campaign. Nothing is sent before its first use.
func (c *Client) Election(key string, options ...Option) *Election {
	return &Election{c, key, slices.Clone(options)}
}

// Leadership is a hold with a published value, from Campaign until Resign or until a loss. A leader that stalls or loses its
// connection may notice this only after another one leads: send Fence with each write.
type Leadership struct{ *Hold }

// Proclaimed is a value that a leader has published.
type Proclaimed struct {
	// Fence is larger than the fence of every earlier leader.
	Fence uint64
	// Value can be any bytes, 0 to 1024 of them.
	Value string
}

// Leader is the current leader, according to the server.
type Leader struct {
	Proclaimed
	Owner string
	// TimeLeft is the time until its leadership ends unless it is renewed.
	TimeLeft time.Duration
}

// Change is a new leader, as an observer receives it.
type Change struct {
	// Leader is nil if nobody leads.
	Leader *Proclaimed
	// Missed says whether the observer may have missed leaders since the last change. This happens if there was no connection,
	// or if it did not take its changes in time.
	Missed bool
}

// Campaign waits until this process leads, and publishes value from then on: any bytes, 0 to 1024 of them. It waits like
// Lock, and takes the same options except Shared and Permits. If the context ends first, nothing stays on the server.
//
// Errors: the errors of Lock, and ErrOutOfRange for a value that is too long.
func (e *Election) Campaign(ctx context.Context, value string, options ...Option) (*Leadership, error) {
	hold, err := e.client.acquire(ctx, []string{e.key}, &value, slices.Concat(e.options, options))
	if err != nil {
		return nil, err
	}
	return &Leadership{hold}, nil
}

// Proclaim publishes another value, which observers receive under the same fence.
//
// Errors: ErrLost, ErrOutOfRange, ErrUnavailable, and the context's cause. After the last two, either value may be published.
func (l *Leadership) Proclaim(ctx context.Context, value string) error {
	require(ctx)
	call, event, err := l.client.begin(nil)
	if err != nil {
		return err
	}
	event.proclaim(call.number, l.number, value)
	_, err = l.client.wait(ctx, call)
	return err
}

// Resign ends the leadership: the same as Release.
func (l *Leadership) Resign(ctx context.Context) error { return l.Release(ctx) }

// Leader returns the leader at the moment of the request; nil if nobody leads. It may have changed since.
func (e *Election) Leader(ctx context.Context) (*Leader, error) {
	require(ctx)
	call, event, err := e.client.begin(nil)
	if err != nil {
		return nil, err
	}
	event.leader(call.number, e.key)
	answered, err := e.client.wait(ctx, call)
	leader := answered.leader
	if leader == nil {
		return nil, err
	}
	left := time.Duration(min(leader.timeLeft, math.MaxInt64/uint64(time.Millisecond))) * time.Millisecond
	return &Leader{Proclaimed{leader.fence, leader.value}, leader.owner, left}, err
}

// Observe returns the current leader, then each change, until the loop is left. It begins with the loop. All observers of one
// client share its connection.
//
// The first change is the current leader, or nil. Each change comes once, and fences never decrease. After a new connection, a
// fail-over or a moved slot, the next change is the leader of that moment, and it is Missed. At most 1024 changes are kept:
// older ones are dropped, and the next one is Missed.
//
// The loop continues while the server is unreachable. It ends after an error: the cause of the context, ErrDenied,
// ErrNotALock, ErrModuleMissing, ErrRefused or ErrClosed.
func (e *Election) Observe(ctx context.Context) iter.Seq2[Change, error] {
	require(ctx)
	return func(yield func(Change, error) bool) {
		c := e.client
		call, event, err := c.begin(nil)
		if err != nil {
			yield(Change{}, err)
			return
		}
		changes := &changes{wake: make(chan struct{}, 1)}
		call.changes = changes
		event.observe(call.number, e.key)
		c.handle()
		defer c.abandon(call)
		for {
			select {
			case <-ctx.Done():
				yield(Change{}, context.Cause(ctx))
				return
			default:
			}
			c.mu.Lock()
			change, is := changes.take()
			c.mu.Unlock()
			if is {
				if !yield(change, nil) {
					return
				}
				continue
			}
			select {
			case <-changes.wake:
			case <-ctx.Done():
			case ended := <-call.done:
				c.mu.Lock()
				rest := changes.untaken
				c.mu.Unlock()
				for _, change := range rest {
					if !yield(change, nil) {
						return
					}
				}
				yield(Change{}, &Error{Code: ended.code, Message: ended.text, Transient: ended.transient})
				return
			}
		}
	}
}

// changes holds the untaken changes of an observer. The client's lock guards it.
type changes struct {
	untaken []Change
	wake    chan struct{} // Has room for one signal.
}

func (c *changes) add(change Change) {
	if len(c.untaken) == changesMax {
		c.untaken = c.untaken[1:]
		c.untaken[0].Missed = true
	}
	c.untaken = append(c.untaken, change)
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *changes) take() (Change, bool) {
	if len(c.untaken) == 0 {
		return Change{}, false
	}
	change := c.untaken[0]
	c.untaken = c.untaken[1:]
	return change, true
}
