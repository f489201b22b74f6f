package rlock

import (
	"context"
	"iter"
	"slices"
	"time"
)

// changesMax is how many changes an observer may leave untaken.
const changesMax = 1024

// Election is the right to lead at a key. One owner at a time has it, in the order of asking, and publishes a value with it,
// such as its address. It is the lock at its key: a holder that did not campaign keeps candidates waiting, but is no leader.
type Election struct {
	client  *Client
	key     string
	options []Option
}

// Election is the one at a key; the options are those of each campaign. Nothing is sent before it is used.
func (c *Client) Election(key string, options ...Option) *Election {
	return &Election{c, key, slices.Clone(options)}
}

// Leadership is a hold with a value that its leader publishes, from Campaign until Resign, or until it is lost. Another one
// may lead before this one notices that it stalled or was cut off: send Fence along with each write.
type Leadership struct{ *Hold }

// Proclaimed is what a leader has published.
type Proclaimed struct {
	// Fence is larger than the fence of every leader before.
	Fence uint64
	// Value is any bytes, 0 to 1024 of them.
	Value string
}

// Leader is who leads, as the server says.
type Leader struct {
	Proclaimed
	Owner string
	// TimeLeft is when its leadership ends unless it is renewed.
	TimeLeft time.Duration
}

// Change is who leads from now on, as an observer sees it.
type Change struct {
	// Leader is nil if nobody leads.
	Leader *Proclaimed
	// Missed says that others may have led since the last change: there was no connection, or too many changes were not taken.
	Missed bool
}

// Campaign waits until this process leads, and publishes value from then on: any bytes, 0 to 1024 of them. It waits as Lock
// does, and takes the same options but Shared and Permits. If the context ends before, nothing stays behind on the server.
//
// Errors: those of Lock, and ErrOutOfRange for a value that is too long.
func (e *Election) Campaign(ctx context.Context, value string, options ...Option) (*Leadership, error) {
	hold, err := e.client.acquire(ctx, []string{e.key}, &value, slices.Concat(e.options, options))
	if err != nil {
		return nil, err
	}
	return &Leadership{hold}, nil
}

// Proclaim publishes another value; observers receive it under the same fence.
//
// Errors: ErrLost, ErrOutOfRange, or ErrUnavailable: then, and if the context ends before, it is not known which value is
// published.
func (l *Leadership) Proclaim(ctx context.Context, value string) error {
	call, event, err := l.client.begin(evProclaim, nil)
	if err != nil {
		return err
	}
	event.u64(l.number).text(value)
	_, err = l.client.wait(ctx, call)
	return err
}

// Resign ends the leadership: the same as Release.
func (l *Leadership) Resign(ctx context.Context) error { return l.Release(ctx) }

// Leader is who leads at the moment of asking, nil if nobody does. It may be different by now.
func (e *Election) Leader(ctx context.Context) (*Leader, error) {
	call, event, err := e.client.begin(evLeader, nil)
	if err != nil {
		return nil, err
	}
	event.text(e.key)
	answered, err := e.client.wait(ctx, call)
	return answered.leader, err
}

// Observe is who leads now, and then each change of that, as the server tells it, until the loop is left. It begins when it
// is ranged over. All that observe by one client share its connection.
//
// The first change is the leader of now, or that there is none. Each change comes once, and fences never go back. After a new
// connection, a fail-over or a moved slot it begins again with the leader of that moment, in a change that is Missed. Of more
// than 1024 changes that are not taken the oldest are dropped, and the next one is Missed.
//
// An unreachable server ends nothing. The loop ends after an error: the cause of the context, ErrDenied, ErrNotALock,
// ErrModuleMissing, ErrRefused or ErrClosed.
func (e *Election) Observe(ctx context.Context) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		c := e.client
		call, event, err := c.begin(evObserve, nil)
		if err != nil {
			yield(Change{}, err)
			return
		}
		changes := &changes{wake: make(chan struct{}, 1)}
		call.changes = changes
		event.text(e.key)
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

// changes are those of an observer that are not taken. The client's lock guards them.
type changes struct {
	untaken []Change
	wake    chan struct{} // Takes one without waiting.
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
