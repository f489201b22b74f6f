// Package quorum takes locks on a majority of several independent servers, so that they survive the failure of a minority.
// This is Redlock, with a queue and a fence.
//
//	q, err := quorum.New([]string{"redis://locks-1", "redis://locks-2", "redis://locks-3"}, rlock.Options{})
//	hold, err := q.Lock(ctx, "invoice:7", rlock.Wait(10*time.Second))
//	defer hold.Release(ctx)
//	err = store(hold.Context(), hold.Fence()) // The context ends if a majority does not hold the lock any more.
package quorum

import (
	"context"

	"rlock"
	"rlock/internal/host"
)

// Quorum is several independent servers that hold locks together. A majority of them holds a lock: of 3 servers one may fail,
// of 5 two, of 7 three, of 9 four. Each is a master, and none is a replica of another. It is safe for concurrent use.
//
// A member must not forget a grant and then grant the lock again. So it needs rlock.startup-grace-ms of at least the longest
// lease, or appendonly yes with appendfsync always and no-appendfsync-on-rewrite no. For the fences, the grace must also be
// longer than the difference between the members' clocks. A lease above the grace is refused: see AnyGrace.
type Quorum struct{ client *rlock.Client }

// Option is an option of New.
type Option func(*settings)

type settings struct{ anyGrace bool }

// AnyGrace allows leases above the startup grace of a member. Then a member that crashes may grant a lock again that is still
// held, and two can hold it at the same time. Use this only for servers that never forget for another reason.
func AnyGrace() Option { return func(s *settings) { s.anyGrace = true } }

// New creates a quorum of 3, 5, 7 or 9 servers, which connects at its first call. All its users must name the same servers. A
// URL begins with redis://, rediss:// or redis+unix://. The options apply to each member, and the
// Listener hears of a lock once. Every error is an rlock.ErrOutOfRange, and names the member, from members[0] on, if it is about
// one.
func New(urls []string, options rlock.Options, more ...Option) (*Quorum, error) {
	var s settings
	for _, option := range more {
		option(&s)
	}
	client, err := host.NewQuorum(urls, s.anyGrace, options)
	if err != nil {
		return nil, err
	}
	return &Quorum{client.(*rlock.Client)}, nil
}

// Connect connects now. Members that are down join later, if there is a majority now. It returns rlock.ErrMember if a server
// cannot take part: it is a replica, without the module, or the same server as another member. It returns rlock.ErrConnect if
// fewer than a majority can be reached, or if one of them refuses the connection for a reason that does not pass, such as a
// wrong password.
func (q *Quorum) Connect(ctx context.Context) error { return q.client.Connect(ctx) }

// Lock waits for the lock of a key. If the context ends first, Lock returns its cause at once, and nothing of the request
// stays at any member. The hold outlives the context. Without Wait it waits without limit, even while too few members can be
// reached.
//
// All options are those of package rlock, except Shared and Permits: with them it returns rlock.ErrOutOfRange, and so do
// Upgrade and Downgrade of the hold. The hold is lost once fewer members than a majority hold the lock.
//
// Errors: rlock.ErrNotAcquired after Wait, rlock.ErrUnavailable if too few members answered by then, rlock.ErrMember for a
// lease above the startup grace of a member, the context's cause, and others of package rlock.
func (q *Quorum) Lock(ctx context.Context, key string, options ...rlock.Option) (*rlock.Hold, error) {
	return q.client.Lock(ctx, key, options...)
}

// TryLock asks for the lock once. It returns rlock.ErrNotAcquired if another owner holds it. Of several that try a free lock
// at the same time, one gets it. It may wait for the others to leave: for half of the response timeout, or a fifth of the
// lease if that is less, but at least half a second. It returns rlock.ErrUnavailable if no majority answers within
// Options.RetryTimeout.
func (q *Quorum) TryLock(ctx context.Context, key string, options ...rlock.Option) (*rlock.Hold, error) {
	return q.client.TryLock(ctx, key, options...)
}

// Run calls work while the lock is held: see rlock.Client.Run.
func (q *Quorum) Run(ctx context.Context, key string, work func(context.Context, *rlock.Hold) error, options ...rlock.Option) error {
	return q.client.Run(ctx, key, work, options...)
}

// Activity returns a new activity for rlock.In. It re-enters the locks that it took of this quorum, under the same fence.
func (q *Quorum) Activity() *rlock.Activity { return q.client.Activity() }

// Close ends all waits with rlock.ErrClosed, releases all holds, and closes the connections: see rlock.Client.Close. It waits
// for a majority and for all members that can be reached, until the context ends.
func (q *Quorum) Close(ctx context.Context) error { return q.client.Close(ctx) }
