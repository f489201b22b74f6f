package rlock

import (
	"crypto/rand"
	"fmt"
	"math"
	"os"
	"strings"
	"time"
)

const (
	longest = 24 * time.Hour
	forever = time.Duration(math.MaxInt64)
)

// Option changes one call of Lock.
type Option func(*request)

// Lease is how long the hold lasts if it is not renewed, as when its process dies: 1 ms to 24 h, 30 s if left out.
func Lease(d time.Duration) Option { return func(r *request) { r.lease = d } }

// Wait is how long to queue for the lock: 0 to 24 h. 0 is one try. Left out, Lock waits until its context ends.
func Wait(d time.Duration) Option { return func(r *request) { r.wait, r.bounded = d, true } }

// Shared holds the lock together with others that ask for the same. Not with several keys.
func Shared() Option { return func(r *request) { r.shared = true } }

// Limit makes the lock a semaphore of n permits, 1 to 1,000,000. It implies Shared. Every caller names the same n.
func Limit(n int) Option { return func(r *request) { r.shared, r.limit, r.limited = true, n, true } }

// Permits is how many permits of a Limit to take, all or none: 1 to the limit, 1 if left out.
func Permits(k int) Option { return func(r *request) { r.permits, r.permitted = k, true } }

// Owner names who asks: 1 to 256 bytes, none of them 0x00 to 0x20 or 0x7f, not beginning with "rlock:".
// Left out, it is host:pid:random, new for each call. Give the locks of one sequential activity the same owner, so that
// the server sees deadlocks. An owner does one thing after the other, and never takes a lock that it has.
func Owner(name string) Option { return func(r *request) { r.owner, r.named = name, true } }

// request is what one call of Lock asks for.
type request struct {
	keys                                []string
	owner                               string
	lease, wait                         time.Duration
	limit, permits                      int
	bounded, shared, limited, permitted bool
	named                               bool
}

func newRequest(keys []string, options []Option) (*request, error) {
	r := &request{keys: append([]string(nil), keys...), lease: 30 * time.Second, permits: 1}
	for _, option := range options {
		option(r)
	}
	if !r.named {
		r.owner = newOwner()
	}
	err := r.check()
	r.lease = r.lease.Truncate(time.Millisecond) // As the server will count it.
	return r, err
}

func newOwner() string {
	host, err := os.Hostname()
	if err != nil || host == "" || strings.ContainsFunc(host, func(c rune) bool { return c <= ' ' || c == 0x7f }) {
		host = "unknown"
	}
	return fmt.Sprintf("%.128s:%d:%s", host, os.Getpid(), rand.Text())
}

func (r *request) check() error {
	refuse := func(argument string, value any, limit string) error {
		return fmt.Errorf("rlock: %s is %v, must be %s", argument, value, limit)
	}
	switch {
	case r.lease < time.Millisecond || r.lease > longest:
		return refuse("Lease", r.lease, "1 ms to 24 h")
	case r.wait < 0 || r.wait > longest:
		return refuse("Wait", r.wait, "0 to 24 h")
	case r.limited && (r.limit < 1 || r.limit > 1_000_000):
		return refuse("Limit", r.limit, "1 to 1000000")
	case r.permitted && !r.limited:
		return refuse("Permits", r.permits, "given together with Limit")
	case r.permitted && (r.permits < 1 || r.permits > r.limit):
		return refuse("Permits", r.permits, fmt.Sprintf("1 to %d, the Limit", r.limit))
	case len(r.keys) < 1 || len(r.keys) > 1024:
		return refuse("the number of keys", len(r.keys), "1 to 1024")
	case len(r.keys) > 1 && r.shared:
		return refuse("Shared", true, "left out with several keys")
	case r.owner == "" || len(r.owner) > 256:
		return refuse("Owner", fmt.Sprintf("%d bytes long", len(r.owner)), "1 to 256 bytes long")
	case strings.HasPrefix(r.owner, "rlock:"):
		return refuse("Owner", fmt.Sprintf("%q", r.owner), "without 'rlock:' at its beginning")
	}
	for i := range len(r.owner) {
		if r.owner[i] <= ' ' || r.owner[i] == 0x7f {
			return refuse("Owner", fmt.Sprintf("%q", r.owner), "without the bytes 0x00 to 0x20 and 0x7f")
		}
	}
	seen := map[string]bool{}
	for _, key := range r.keys {
		if seen[key] {
			return refuse("a key", fmt.Sprintf("%q twice", key), "named once")
		}
		seen[key] = true
	}
	return nil
}

// left is what is left of the wait.
func (r *request) left(start time.Time) time.Duration {
	if !r.bounded {
		return forever
	}
	return max(0, r.wait-time.Since(start))
}

// timer ends when the wait and more are over.
func (r *request) timer(more time.Duration) *time.Timer {
	if !r.bounded {
		return time.NewTimer(forever)
	}
	return time.NewTimer(r.wait + more)
}

// until is when a lease that was asked for then may end. The server counts whole milliseconds: it may end 1 ms early.
func (r *request) until(sent time.Time) time.Time { return sent.Add(r.lease - time.Millisecond) }

// The commands, each after the position of its first key.

func (r *request) acquiring() (int, []any) {
	if len(r.keys) > 1 {
		return 4, r.all([]any{"RLOCK.MACQUIRE", r.owner, r.lease.Milliseconds()})
	}
	args := []any{"RLOCK.ACQUIRE", r.keys[0], r.owner, r.lease.Milliseconds()}
	if r.shared {
		args = append(args, "SHARED")
	}
	if r.limited {
		args = append(args, "LIMIT", r.limit, "PERMITS", r.permits)
	}
	return 1, args
}

func (r *request) renewing() (int, []any) {
	if len(r.keys) > 1 {
		return 4, r.all([]any{"RLOCK.MRENEW", r.owner, r.lease.Milliseconds()})
	}
	return 1, []any{"RLOCK.RENEW", r.keys[0], r.owner, r.lease.Milliseconds()}
}

func (r *request) releasing() (int, []any) {
	if len(r.keys) > 1 {
		return 3, r.all([]any{"RLOCK.MRELEASE", r.owner})
	}
	return 1, []any{"RLOCK.RELEASE", r.keys[0], r.owner}
}

func (r *request) cancelling() []any { return []any{"RLOCK.CANCEL", r.keys[0], r.owner} }

func (r *request) all(args []any) []any {
	args = append(args, len(r.keys))
	for _, key := range r.keys {
		args = append(args, key)
	}
	return args
}

// wholeMilliseconds rounds up: 0 would wait for ever.
func wholeMilliseconds(d time.Duration) int64 {
	return max(1, int64((d+time.Millisecond-1)/time.Millisecond))
}
