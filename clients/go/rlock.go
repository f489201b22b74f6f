// Package rlock takes locks on a Redis or Valkey server that has loaded the module librlock.so. The locks are queued in the
// server, leased, and every grant has a fence.
//
//	client, err := rlock.NewClient("redis://127.0.0.1:6379", rlock.Options{})
//	hold, err := client.Lock(ctx, "invoice:7", rlock.Wait(10*time.Second))
//	defer hold.Release(ctx)
//	err = store(hold.Context(), hold.Fence()) // The context ends if the lock is lost.
//
// The engine of rlock's client for Rust makes all decisions. It is translated to Go, so there is no cgo.
// A lease is not mutual exclusion: send Hold.Fence with each write that the lock protects.
package rlock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Version of this package.
const Version = "0.1.0"

// Error is the error of this package. Compare it by errors.Is with one of the errors below, or by Code. The codes are the
// same in every language.
type Error struct {
	Code, Message string
	// Transient says whether a retry may help.
	Transient bool
}

func (e *Error) Error() string { return "rlock: " + e.Message }

// Is reports whether target is an error with the same code.
func (e *Error) Is(target error) bool {
	kind, is := target.(*Error)
	return is && kind.Code == e.Code
}

// The kinds of errors.
var (
	ErrOutOfRange    = &Error{Code: "OutOfRange", Message: "an argument is out of its range"}
	ErrNotAcquired   = &Error{Code: "NotAcquired", Message: "the lock was not acquired in time"}
	ErrLost          = &Error{Code: "Lost", Message: "the lock was lost"}
	ErrConnect       = &Error{Code: "Connect", Message: "the first connection failed"}
	ErrModuleMissing = &Error{Code: "ModuleMissing", Message: "the server has not loaded the module"}
	ErrUnavailable   = &Error{Code: "Unavailable", Message: "the server gave no usable answer in time"}
	ErrNotReplicated = &Error{Code: "NotReplicated", Message: "too few replicas acknowledged the grant"}
	ErrQueueFull     = &Error{Code: "QueueFull", Message: "the queue is full"}
	ErrCancelled     = &Error{Code: "Cancelled", Message: "somebody withdrew the request"}
	ErrDeadlock      = &Error{Code: "Deadlock", Message: "waiting would cause a deadlock"}
	ErrHeldOtherwise = &Error{Code: "HeldOtherwise", Message: "the activity holds the lock together with other keys"}
	ErrDenied        = &Error{Code: "Denied", Message: "the user lacks a permission"}
	ErrNotALock      = &Error{Code: "NotALock", Message: "the key holds something that is not a lock"}
	ErrOutOfMemory   = &Error{Code: "OutOfMemory", Message: "the server is out of memory"}
	ErrRefused       = &Error{Code: "Refused", Message: "the server refused the request"}
	ErrNotReleased   = &Error{Code: "NotReleased", Message: "the server refused to release locks"}
	ErrProtocol      = &Error{Code: "Protocol", Message: "the server's answer has an unexpected form"}
	ErrMember        = &Error{Code: "Member", Message: "a server cannot be a member of the quorum"}
	ErrClosed        = &Error{Code: "Closed", Message: "the client has been closed"}
)

var losses = [...]string{
	endingLeaseEnded:    "its lease ended",
	endingEndedByServer: "the server ended it",
	endingReleased:      "it was released",
}

func outOfRange(format string, arguments ...any) error {
	return &Error{Code: "OutOfRange", Message: fmt.Sprintf(format, arguments...)}
}

// require panics without a context, as net/http does: a nil dereference would not name the argument.
func require(ctx context.Context) {
	if ctx == nil {
		panic("rlock: ctx is nil, it must be a context")
	}
}

// millisOr returns a time in whole milliseconds, rounded up; otherwise for zero.
func millisOr(d time.Duration, otherwise uint64) uint64 {
	if d == 0 {
		return otherwise
	}
	return uint64((d-1)/time.Millisecond + 1)
}

// Option is an option of a request for a lock. Fractions of a millisecond are rounded up.
type Option func(*terms)

type terms struct {
	err              error
	wait, activity   uint64
	form             termsForm
	isShared, ignore bool
	permits, limit   uint32
	onRisk           func(time.Duration)
}

func (t *terms) millis(name string, d time.Duration, to *uint64) {
	if d < 0 {
		t.err = outOfRange("%s is %v, it must not be below zero", name, d)
		return
	}
	*to = millisOr(d, 0)
}

// Lease sets how long others wait after this process has died: 3 ms to 30 days, and at most the server's limit. The client
// renews it every third of this time. Default 30 s.
func Lease(d time.Duration) Option { return func(t *terms) { t.millis("Lease", d, &t.form.lease) } }

// FixedLease sets a lease that is not renewed: the lock is lost when it ends.
func FixedLease(d time.Duration) Option {
	return func(t *terms) {
		t.millis("FixedLease", d, &t.form.lease)
		t.form.renewed = false
	}
}

// MaxHold sets the longest time, counted from the grant, for which the lease is renewed. Then the lock is lost. Default: no
// limit.
func MaxHold(d time.Duration) Option {
	return func(t *terms) { t.millis("MaxHold", d, &t.form.maxHold) }
}

// Bound ends the hold this time after its connection. Default: the hold does not depend on its connection. One key only.
func Bound(grace time.Duration) Option {
	return func(t *terms) { t.millis("Bound", grace, &t.form.bound) }
}

// Replicas sets how many replicas must acknowledge a grant and each renewal. Default 0. Not together with Bound.
func Replicas(count uint16) Option { return func(t *terms) { t.form.replicas = count } }

// Margin loses the hold here this time before its lease ends at the server: time for code that looks at its hold now and
// then. Default 0, at most a third of the lease, of Bound and of MaxHold.
func Margin(d time.Duration) Option { return func(t *terms) { t.millis("Margin", d, &t.form.margin) } }

// Wait sets how long to wait; 0 is one try. Default: until the context ends.
func Wait(d time.Duration) Option { return func(t *terms) { t.millis("Wait", d, &t.wait) } }

// Shared asks for the lock together with other readers. One key only.
func Shared() Option { return func(t *terms) { t.isShared = true } }

// Permits asks for count units of a semaphore that has limit units, 1 to 1,000,000. One key only.
func Permits(count, limit uint32) Option {
	return func(t *terms) {
		t.permits, t.limit = count, limit
		if count == 0 || limit == 0 {
			t.err = outOfRange("Permits are %d of %d, both must be at least 1", count, limit)
		}
	}
}

// In makes an activity the owner, instead of a new owner.
func In(activity *Activity) Option {
	return func(t *terms) {
		if activity == nil || activity.number == 0 {
			t.err = outOfRange("In has no activity of Client.Activity")
			return
		}
		t.activity = activity.number
	}
}

// IgnoreLoss makes Release not report a loss.
func IgnoreLoss() Option { return func(t *terms) { t.ignore = true } }

// OnRisk calls f if no renewal of the hold has been confirmed for half of its lease, with the time until it is lost unless a
// renewal succeeds; again only after one has succeeded. The goroutine that calls Options.Listener calls f, so f must be quick,
// and must not call Client.Close. A panic is logged.
func OnRisk(f func(left time.Duration)) Option {
	return func(t *terms) {
		if t.onRisk = f; f == nil {
			t.err = outOfRange("OnRisk is nil, it must be a function")
		}
	}
}

// Activity is an owner for sequential work. Its calls re-enter its locks. If two activities would wait for each other, the
// second wait fails with ErrDeadlock.
type Activity struct{ number uint64 }

// activities counts those of all clients, so that each is another owner in every client.
var activities atomic.Uint64

// Activity returns a new activity.
func (c *Client) Activity() *Activity { return &Activity{activities.Add(1)} }

// Lock waits for the lock of a key. If the context ends first, Lock returns its cause at once, and nothing of the request
// stays on the server. The hold outlives the context.
//
// Errors: ErrNotAcquired after Wait, the context's cause, and others of this package.
func (c *Client) Lock(ctx context.Context, key string, options ...Option) (*Hold, error) {
	return c.LockAll(ctx, []string{key}, options...)
}

// TryLock asks for the lock once. It returns ErrNotAcquired if another owner holds it.
func (c *Client) TryLock(ctx context.Context, key string, options ...Option) (*Hold, error) {
	return c.LockAll(ctx, []string{key}, slices.Concat(options, []Option{Wait(0)})...)
}

// LockAll is Lock for 1 to 1024 keys: it takes all of them or none.
func (c *Client) LockAll(ctx context.Context, keys []string, options ...Option) (*Hold, error) {
	return c.acquire(ctx, keys, nil, options)
}

// acquire also publishes a value, if there is one.
func (c *Client) acquire(ctx context.Context, keys []string, value *string, options []Option) (*Hold, error) {
	require(ctx)
	t := terms{wait: none, form: termsForm{maxHold: none, bound: none, lease: 30_000, renewed: true}}
	for _, option := range options {
		option(&t)
	}
	if t.err != nil {
		return nil, t.err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	mode := modeForm{mode: accessExclusive, permits: 1, limit: t.limit}
	switch {
	case value != nil && (t.limit > 0 || t.isShared):
		return nil, outOfRange("Shared and Permits cannot be used for a campaign")
	case t.limit > 0 && t.isShared:
		return nil, outOfRange("Shared and Permits cannot be used together")
	case t.limit > 0:
		mode.mode, mode.permits = accessPermits, t.permits
	case t.isShared:
		mode.mode = accessShared
	}
	hold := &Hold{client: c, keys: append([]string(nil), keys...), ignore: t.ignore, permits: mode.permits, onRisk: t.onRisk}
	inner, cancel := context.WithCancelCause(context.WithValue(context.WithoutCancel(ctx), callerKey{}, nil))
	hold.context, hold.cancel = &holdContext{inner, hold}, cancel
	owner := ownerForm{owner: owningNew}
	if t.activity != 0 {
		owner = ownerForm{owner: owningActivity, activity: t.activity}
	}
	wanted := wantedForm{owner, hold.keys, mode}
	call, event, err := c.begin(hold)
	if err != nil {
		return nil, err
	}
	if value == nil {
		event.lock(call.number, wanted, t.wait, t.form)
	} else {
		event.campaign(call.number, wanted, t.wait, t.form, *value)
	}
	ended, err := c.wait(ctx, call)
	switch {
	case err != nil:
		return nil, err
	case ended.kind == acRefused && t.wait == 0:
		return nil, &Error{Code: "NotAcquired", Message: hold.text() + ": somebody else holds it"}
	case ended.kind == acRefused:
		return nil, &Error{Code: "NotAcquired", Message: fmt.Sprintf("%s: not acquired within %d ms", hold.text(), t.wait)}
	}
	return hold, nil
}

// Run calls work while the lock is held. The context of work ends if the lock is lost, or with ctx. The error joins the
// error of work and the error of the release: ErrLost if the lock was lost, even if work did not notice.
func (c *Client) Run(ctx context.Context, key string, work func(context.Context, *Hold) error, options ...Option) error {
	hold, err := c.Lock(ctx, key, options...)
	if err != nil {
		return err
	}
	inner, cancel := context.WithCancelCause(context.WithValue(ctx, callerKey{}, ctx))
	stop := context.AfterFunc(hold.context, func() { cancel(context.Cause(hold.context)) })
	defer cancel(nil)
	defer hold.Release(context.WithoutCancel(ctx)) // If work panics.
	err = work(inner, hold)
	stop()
	return errors.Join(err, hold.Release(context.WithoutCancel(ctx)))
}

// Hold is one lock or several, from the grant until Release or until a loss.
type Hold struct {
	client    *Client
	number    uint64
	keys      []string
	owner     string
	fences    map[string]uint64
	ignore    bool
	onRisk    func(time.Duration)
	context   *holdContext
	cancel    context.CancelCauseFunc
	permits   uint32 // Those that are not released yet. The client's lock guards this and releasing.
	releasing *call
}

// holdContext ends together with the lease, even if the process was paused and no timer has run yet.
type holdContext struct {
	context.Context
	hold *Hold
}

func (c *holdContext) Err() error {
	if c.Context.Err() == nil {
		c.hold.Remaining()
	}
	return c.Context.Err()
}

func (h *Hold) text() string { return strings.Join(h.keys, ", ") }

// Keys returns the requested keys.
func (h *Hold) Keys() []string { return append([]string(nil), h.keys...) }

// Owner returns the holder's name on the server.
func (h *Hold) Owner() string { return h.owner }

// Fence is larger than the fence of every earlier holder: send it with each write. For several keys it is the largest fence.
func (h *Hold) Fence() uint64 {
	var most uint64
	for _, fence := range h.Fences() {
		most = max(most, fence)
	}
	return most
}

// Fences returns the fence of each key.
func (h *Hold) Fences() map[string]uint64 {
	h.client.mu.Lock() // An upgrade may change them.
	defer h.client.mu.Unlock()
	return maps.Clone(h.fences)
}

// Context has the values of the context of Lock, but does not end with it. It ends when the lock is lost, with ErrLost as its
// cause; when its release begins, with context.Canceled; or when Client.Close begins, with ErrClosed. The first of these
// counts: if Release learns of a loss only from the server, the cause is still context.Canceled.
//
// Releases and Close may be given this context, the context that Run gives to its work, or one made of these. If it ends because
// any hold is released or any client is closed, before the call or during it, they wait for the server all the same: until its
// deadline, or until the caller's context of Run ends. To end such a wait otherwise, use a context that is not made of these.
func (h *Hold) Context() context.Context { return h.context }

// Remaining returns how long the lock stays held if the server sends nothing more; 0 if it is lost or released.
func (h *Hold) Remaining() time.Duration {
	h.client.mu.Lock()
	defer h.client.mu.Unlock()
	return h.remaining()
}

// remaining is Remaining for a caller that holds the client's lock. It ends the context if the lease is over and no timer has
// run yet.
func (h *Hold) remaining() time.Duration {
	if h.context.Context.Err() != nil {
		return 0
	}
	left := h.client.engine.remaining(h.number)
	if left == 0 {
		h.cancel(h.lost(losses[endingLeaseEnded]))
	}
	return left
}

// end ends the context with this cause, unless the lock was lost before. The caller holds the client's lock.
func (h *Hold) end(cause error) {
	h.remaining()
	h.cancel(cause)
}

// Check returns nil if the lock is held now; ErrClosed if Client.Close has released it; otherwise ErrLost.
func (h *Hold) Check() error {
	if h.Remaining() > 0 {
		return nil
	}
	if why := (*Error)(nil); errors.As(context.Cause(h.context), &why) {
		return why
	}
	return h.lost(losses[endingReleased])
}

func (h *Hold) lost(why string) *Error {
	return &Error{Code: "Lost", Message: h.text() + ": the lock was lost: " + why}
}

// Release releases the lock. It returns ErrLost if the lock was lost before. If the context ends before the server has
// answered, Release returns its cause, and the client releases the lock in the background. Only the first call has an effect;
// later ones wait for its outcome.
func (h *Hold) Release(ctx context.Context) error { return h.release(ctx, none) }

// ReleasePermits releases some permits of a semaphore, and the hold keeps the others. With its last permits the hold ends, as
// by Release. Unless permits is from 1 to the number that is still held, which is 1 without Permits, it releases nothing, and
// returns ErrOutOfRange. It returns ErrLost if the lock was lost before, or if all permits were released. If the context ends
// before the server has answered, it returns its cause, and the client releases them in the background.
func (h *Hold) ReleasePermits(ctx context.Context, permits uint32) error {
	require(ctx)
	c := h.client
	c.mu.Lock()
	held := h.permits
	switch {
	case held == 0 || h.releasing != nil:
		c.mu.Unlock()
		return h.lost(losses[endingReleased])
	case permits < 1 || permits > held:
		c.mu.Unlock()
		return outOfRange("permits is %d, it must be from 1 to %d", permits, held)
	}
	if permits == held {
		h.permits = 0
		c.mu.Unlock()
		return h.release(ctx, none)
	}
	call, event, err := c.beginLocked(nil)
	if err != nil {
		return h.notReleased(err)
	}
	h.permits -= permits
	event.releasePermits(call.number, h.number, permits)
	c.handle()
	return h.released(ctx, call)
}

// leastMax is the longest time for which the server keeps a released lock.
const leastMax = 30 * 24 * time.Hour

// ReleaseAfter is Release, but the server keeps the lock until least after its grant. Unless least is from 0 to 30 days, it
// returns ErrOutOfRange, and the hold goes on. Above the server's limit for leases it returns ErrRefused, and the lock becomes
// free when its lease ends.
func (h *Hold) ReleaseAfter(ctx context.Context, least time.Duration) error {
	if least < 0 || least > leastMax {
		return outOfRange("least is %v, it must be from 0 to 30 days", least)
	}
	return h.release(ctx, millisOr(least, 0))
}

func (h *Hold) release(ctx context.Context, least uint64) error {
	require(ctx)
	c := h.client
	c.mu.Lock()
	if h.releasing != nil {
		c.mu.Unlock()
		return h.released(ctx, h.releasing)
	}
	call, event, err := c.beginLocked(nil)
	if err != nil {
		return h.notReleased(err)
	}
	h.releasing = call
	delete(c.holds, h.number)
	h.end(errReleased)
	event.release(call.number, h.number, least)
	c.handle()
	return h.released(ctx, call)
}

// errReleased is the cause of the end of a hold's context by its release.
var errReleased = fmt.Errorf("the lock was released: %w", context.Canceled)

// notReleased is the error of a release that the client is too late for: a loss comes first.
func (h *Hold) notReleased(err error) error {
	if why := h.Check(); errors.Is(why, ErrLost) {
		if h.ignore {
			return nil
		}
		return why
	}
	return err
}

// released waits for the end of a release, as several callers may.
func (h *Hold) released(ctx context.Context, call *call) error {
	ctx, stop := withoutHolds(ctx)
	defer stop()
	var ended action
	select {
	case ended = <-call.done:
	case <-ctx.Done():
		select {
		case ended = <-call.done: // A loss that is known needs no server.
		default:
			return context.Cause(ctx)
		}
	}
	call.done <- ended
	if ended.kind == acFailed && !(h.ignore && ended.code == "Lost") {
		return &Error{Code: ended.code, Message: ended.text, Transient: ended.transient}
	}
	return nil
}

// callerKey is the key of the context that the work of Run ends with besides its hold. The context of a hold has nil there.
type callerKey struct{}

// withoutHolds returns a context that ends with ctx, but not because a hold is released or a client is closed. After such an end
// it still ends at the deadline of ctx, or with the caller of Run.
func withoutHolds(ctx context.Context) (context.Context, context.CancelFunc) {
	isOfHold := func() bool {
		cause := context.Cause(ctx)
		return cause == errReleased || cause == closed
	}
	if ctx.Done() == nil || ctx.Err() != nil && !isOfHold() {
		return ctx, func() {}
	}
	rest, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		ended := ctx
		if isOfHold() {
			caller, _ := ctx.Value(callerKey{}).(context.Context)
			if caller == nil {
				caller = context.Background()
			}
			others, stop := withoutHolds(caller)
			defer stop()
			if deadline, has := ctx.Deadline(); has {
				others, stop = context.WithDeadline(others, deadline)
				defer stop()
			}
			select {
			case <-others.Done():
				ended = others
			case <-rest.Done():
			}
		}
		cancel(context.Cause(ended))
	})
	return rest, func() {
		stop()
		cancel(nil)
	}
}

// Extend makes the lease last for at least this time from now.
func (h *Hold) Extend(ctx context.Context, lease time.Duration) error {
	if lease < 0 || lease > math.MaxInt64-time.Second {
		return outOfRange("lease is %v, it is out of its range", lease)
	}
	_, err := h.change(ctx, func(event *writer, call uint64) { event.extend(call, h.number, millisOr(lease, 0)) })
	return err
}

// Downgrade makes an exclusive hold shared.
func (h *Hold) Downgrade(ctx context.Context) error {
	_, err := h.change(ctx, func(event *writer, call uint64) { event.downgrade(call, h.number) })
	return err
}

// Upgrade makes a shared hold exclusive. Wait is its only option. After ErrNotAcquired, or if the context ends, the hold is
// still shared. After ErrLost it was lost meanwhile, and nothing is acquired.
func (h *Hold) Upgrade(ctx context.Context, options ...Option) error {
	t := terms{wait: none}
	for _, option := range options {
		option(&t)
	}
	if t.err != nil {
		return t.err
	}
	ended, err := h.change(ctx, func(event *writer, call uint64) { event.upgrade(call, h.number, t.wait) })
	if err == nil && ended.kind == acRefused {
		err = &Error{Code: "NotAcquired", Message: h.text() + ": others still share it"}
	}
	return err
}

func (h *Hold) change(ctx context.Context, write func(event *writer, call uint64)) (action, error) {
	require(ctx)
	call, event, err := h.client.begin(h)
	if err != nil {
		return action{}, err
	}
	write(event, call.number)
	return h.client.wait(ctx, call)
}
