// Package rlock takes locks of the Redis/Valkey module librlock.so through go-redis.
//
// A waiter queues in the server, is granted the lock by its holder's release, and is sent nothing to poll with.
// A hold is renewed in the background every third of its lease, and its holder is told when it is lost.
// A lease is no mutual exclusion: send Held.Fence along with each write that the lock protects.
package rlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	slice  = 10 * time.Second // One blocked call. Longer waits are asked again, so a dead connection is noticed.
	keep   = 10 * time.Second // The place in the queue outlives its call for this long.
	margin = 5 * time.Second  // What a reply may take on top of the wait, and a release in all.
)

var (
	// ErrNotAcquired says that the wait is over without a grant, or that somebody withdrew the request.
	ErrNotAcquired = errors.New("rlock: not acquired")
	// ErrLost says that the lock is not held any more. It is the cause of Held.Context.
	ErrLost = errors.New("rlock: the lock is lost")
)

// ServerError is a refusal by the server. Decide by Word, as the sentence may change: DEADLOCK, QUEUEFULL, WRONGTYPE,
// NOPERM, OOM, ERR and so on, as in docs/commands.md, and NOMODULE where the server does not know the commands.
type ServerError struct{ Word, Message string }

func (e *ServerError) Error() string { return "rlock: " + e.Message }

// Locks takes locks on the server, or cluster, of one client. It may be used by many goroutines.
type Locks struct {
	client  redis.UniversalClient
	mu      sync.Mutex
	waiting map[string]*redis.Client // By address: what waits is never in the way of what renews and releases.
	leaving map[string]chan struct{} // By owner: closed when its last request has been withdrawn.
}

// New makes Locks from a *redis.Client (of a single server or by Sentinel) or a *redis.ClusterClient; others are refused.
// Tries, renewals and releases use the client's own pool. Waits use a second pool with the same options.
func New(client redis.UniversalClient) (*Locks, error) {
	switch client.(type) {
	case *redis.Client, *redis.ClusterClient:
		return &Locks{client: client, waiting: map[string]*redis.Client{}, leaving: map[string]chan struct{}{}}, nil
	}
	return nil, fmt.Errorf("rlock: client is a %T, must be a *redis.Client or a *redis.ClusterClient", client)
}

// Close closes the connections that Lock has opened for waits, and leaves the client open. Waits end with an error.
func (l *Locks) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []error
	for address, client := range l.waiting {
		all = append(all, client.Close())
		delete(l.waiting, address)
	}
	return errors.Join(all...)
}

// Lock takes the lock of a key, and waits for it as Wait says. Release it on every way out: defer held.Release().
//
// Cancelling ctx ends the wait, and withdraws the request, within a second or in the background. Held.Context is made from ctx.
// Errors: ErrNotAcquired, *ServerError, the cause of ctx, a bad argument, or the connection's error, once the server
// could not be reached for a whole lease or until the wait was over.
func (l *Locks) Lock(ctx context.Context, key string, options ...Option) (*Held, error) {
	return l.LockAll(ctx, []string{key}, options...)
}

// LockAll is Lock for 1 to 1024 keys at once: all or none of them, under one fence. In a cluster they share a slot.
func (l *Locks) LockAll(ctx context.Context, keys []string, options ...Option) (*Held, error) {
	r, err := newRequest(keys, options)
	if err != nil {
		return nil, err
	}
	if gone := l.withdrawal(r.owner); gone != nil { // It would release what this call is about to get.
		select {
		case <-gone:
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	fence, sent, err := l.acquire(ctx, r)
	if err != nil {
		return nil, err
	}
	return l.hold(ctx, r, fence, sent), nil
}

// How acquire asks next.
const (
	tries    = iota // On the user's client, which also finds the server that has the key now.
	waits           // On a connection of its own.
	confirms        // A grant after a wait: the lease began with it, at a time unknown here. A renewal has a known beginning.
)

// acquire tries, then waits, and asks again when its connection is lost.
func (l *Locks) acquire(ctx context.Context, r *request) (int64, time.Time, error) {
	start := time.Now()
	how, fence, answered, pause := tries, int64(0), start, 10*time.Millisecond
	late := r.timer(margin)
	defer late.Stop()
	for {
		sent, limit := time.Now(), min(slice, r.left(start))
		pending := l.ask(r, how, limit, fence)
		var got reply
		select {
		case got = <-pending:
		case <-ctx.Done():
			l.leave(r, pending)
			return 0, sent, context.Cause(ctx)
		case <-late.C:
			l.leave(r, pending)
			return 0, sent, fmt.Errorf("%w: the server did not answer within the wait", ErrNotAcquired)
		}
		switch over := r.left(start) == 0; {
		case got.fence != 0 && how == waits && time.Since(sent) > r.lease/3:
			how, fence = confirms, got.fence
		case got.fence != 0:
			return got.fence, sent, nil
		case got.err == nil:
			answered, pause = time.Now(), 10*time.Millisecond
			if withdrawn := how == waits && time.Since(sent) < limit-2*time.Millisecond; over || withdrawn {
				if how == waits { // Its place is kept.
					l.leave(r, nil)
				}
				return 0, sent, ErrNotAcquired
			}
			how = waits
		case !passes(got.err) || over || time.Since(answered) > r.lease:
			l.leave(r, nil)
			return 0, sent, wrap(got.err)
		default:
			select {
			case <-ctx.Done():
				l.leave(r, nil)
				return 0, sent, context.Cause(ctx)
			case <-time.After(min(pause, r.left(start))):
				how, pause = tries, min(2*pause, time.Second)
			}
		}
	}
}

type reply struct {
	fence int64 // Or another number that was answered; 0 for nil.
	err   error
}

// send runs a command without holding up its caller: go-redis does not interrupt a read when a context ends.
func send(client redis.UniversalClient, key int, args []any) <-chan reply {
	answer := make(chan reply, 1)
	go func() {
		command := redis.NewCmd(context.Background(), args...)
		command.SetFirstKeyPos(int8(key))
		_ = client.Process(context.Background(), command) // The command has the same error.
		fence, err := command.Int64()
		if errors.Is(err, redis.Nil) {
			err = nil
		}
		answer <- reply{fence, err}
	}()
	return answer
}

func (l *Locks) ask(r *request, how int, limit time.Duration, fence int64) <-chan reply {
	key, args := r.acquiring()
	switch how {
	case tries:
		return send(l.client, key, args)
	case confirms:
		return l.renewed(r, fence)
	}
	client, err := l.waiter(r.keys[0])
	if err != nil {
		answer := make(chan reply, 1)
		answer <- reply{err: err}
		return answer
	}
	return send(client, key, append(args, "WAIT", wholeMilliseconds(limit), "KEEP", keep.Milliseconds()))
}

// waiter is the client for waits on the server of a key.
func (l *Locks) waiter(key string) (*redis.Client, error) {
	var node *redis.Client
	switch client := l.client.(type) {
	case *redis.Client:
		node = client
	case *redis.ClusterClient:
		master, err := client.MasterForKey(context.Background(), key)
		if err != nil {
			return nil, err
		}
		node = master
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	address := node.Options().Addr
	if l.waiting[address] == nil {
		options := *node.Options()
		options.ReadTimeout = slice + margin
		options.MaxRetries = -1
		options.PoolSize, options.MaxActiveConns = 100_000, 0 // The queue in the server is the limit.
		options.MinIdleConns, options.MaxIdleConns = 0, 8
		l.waiting[address] = redis.NewClient(&options)
	}
	return l.waiting[address], nil
}

// leave withdraws a request of which pending is the call that may still be answered, and returns after a second at most.
func (l *Locks) leave(r *request, pending <-chan reply) {
	gone := make(chan struct{})
	l.mu.Lock()
	l.leaving[r.owner] = gone
	l.mu.Unlock()
	go func() {
		l.withdraw(r, pending)
		l.mu.Lock()
		if l.leaving[r.owner] == gone {
			delete(l.leaving, r.owner)
		}
		l.mu.Unlock()
		close(gone)
	}()
	select {
	case <-gone:
	case <-time.After(time.Second):
	}
}

// withdraw cancels until the pending call has been answered, as the cancelling may have overtaken it; then it releases.
// It gives up after a lease: whatever was granted has ended by then.
func (l *Locks) withdraw(r *request, pending <-chan reply) {
	for pause := 10 * time.Millisecond; pending != nil; pause = min(2*pause, time.Second) {
		cancelled := send(l.client, 1, r.cancelling())
		select {
		case <-pending:
			pending = nil
		case <-time.After(pause):
		}
		<-cancelled
	}
	for end := time.Now().Add(r.lease); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		cancelled := <-send(l.client, 1, r.cancelling())
		key, args := r.releasing()
		released := <-send(l.client, key, args)
		if !passes(cancelled.err) && !passes(released.err) {
			return
		}
	}
}

func (l *Locks) withdrawal(owner string) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leaving[owner]
}

// renewed answers with the fence if all keys are still held under it.
func (l *Locks) renewed(r *request, fence int64) <-chan reply {
	answer := make(chan reply, 1)
	go func() {
		key, args := r.renewing()
		got := <-send(l.client, key, args)
		held := got.fence == fence
		if len(r.keys) > 1 {
			held = got.fence == int64(len(r.keys))
		}
		if got.err == nil && held {
			got.fence = fence
		} else {
			got.fence = 0
		}
		answer <- got
	}()
	return answer
}

// passes says whether asking again may help: connections come back, and so do servers that restart or change places.
func passes(err error) bool {
	var refusal redis.Error
	if err == nil || errors.Is(err, redis.ErrClosed) {
		return false
	}
	if !errors.As(err, &refusal) {
		return true
	}
	switch word, _, _ := strings.Cut(refusal.Error(), " "); word {
	case "UNBLOCKED", "TRYAGAIN", "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "MOVED", "ASK":
		return true
	}
	return false
}

func wrap(err error) error {
	var refusal redis.Error
	if !errors.As(err, &refusal) {
		return fmt.Errorf("rlock: %w", err)
	}
	message := refusal.Error()
	if strings.HasPrefix(message, "ERR unknown command") {
		return &ServerError{"NOMODULE", "the server has not loaded librlock.so: " + message}
	}
	word, _, _ := strings.Cut(message, " ")
	return &ServerError{word, message}
}
