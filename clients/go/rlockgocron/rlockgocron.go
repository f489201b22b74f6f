// Package rlockgocron lets one of several instances run the jobs of gocron.
//
//	locker, err := rlockgocron.NewLocker(client, "lock:billing:", 5*time.Second)
//	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
//
// A Locker gives each tick of a job to one instance, whichever is first. An Elector gives all ticks to one instance, the
// leader.
package rlockgocron

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-co-op/gocron/v2"

	"rlock"
)

// ErrNotLeader says that this instance does not lead.
var ErrNotLeader = errors.New("rlockgocron: this instance does not lead")

const (
	// leaseMin is the lease of a Locker that has no longer least time.
	leaseMin = 30 * time.Second
	// leaseMax is the longest lease.
	leaseMax = 30 * 24 * time.Hour
	// pause is how long an Elector waits before it campaigns again. Without it, a campaign that fails at once would be
	// repeated thousands of times a second.
	pause = time.Second
)

// Locker is a gocron.Locker. It asks once for the lock of a job, and gocron skips the tick if another instance holds it. The
// lock stays taken until a least time after its grant, even if the job ends before. So an instance whose tick
// comes a little later does not run the job again.
type Locker struct {
	client  *rlock.Client
	prefix  string
	least   time.Duration
	options []rlock.Option
	holds   sync.Map // The *rlock.Hold of each job that runs here, by its name.
}

var _ gocron.Locker = (*Locker)(nil)

// NewLocker returns a Locker. The key of a job is the prefix followed by the name of the job, so programs that share a server
// need different prefixes.
//
// The least time is 0 to 30 days. It must be longer than the time between the ticks of two instances, and shorter than the
// period of the job by that time: otherwise ticks are skipped. A good choice is half of the period.
//
// The options apply to each lock. The default lease is 30 s, or the least time if that is longer: if an instance dies during
// a job, the ticks of the others are skipped until its lease ends.
func NewLocker(client *rlock.Client, prefix string, least time.Duration, options ...rlock.Option) (*Locker, error) {
	if least < 0 || least > leaseMax {
		return nil, fmt.Errorf("rlockgocron: least is %v, it must be 0 to 30 days", least)
	}
	lease := rlock.Lease(max(leaseMin, least))
	return &Locker{client: client, prefix: prefix, least: least, options: slices.Concat([]rlock.Option{lease}, options)}, nil
}

// Lock takes the lock of a job, and returns rlock.ErrNotAcquired if another instance holds it. While no server can be reached
// it tries for Options.RetryTimeout of the client: the job runs late rather than not at all. gocron passes the error to
// gocron.AfterLockError and logs nothing, so Lock logs every other error with slog.Default.
func (l *Locker) Lock(ctx context.Context, name string) (gocron.Lock, error) {
	hold, err := l.client.TryLock(ctx, l.prefix+name, l.options...)
	if err != nil {
		if !errors.Is(err, rlock.ErrNotAcquired) && ctx.Err() == nil {
			slog.Warn("rlockgocron: a tick is skipped", "job", name, "error", err)
		}
		return nil, err
	}
	l.holds.Store(name, hold)
	return &lock{l, name, hold}, nil
}

// Hold returns the hold under which this instance runs a job; nil if it does not run. A job sends its Fence with each write,
// and stops when its Context ends: gocron does not tell a job that its lock is lost. A job calls Hold once, at its beginning:
// after a loss, a later call may return the hold of the next run.
func (l *Locker) Hold(name string) *rlock.Hold {
	hold, _ := l.holds.Load(name)
	held, _ := hold.(*rlock.Hold)
	return held
}

type lock struct {
	locker *Locker
	name   string
	hold   *rlock.Hold
}

// Unlock returns rlock.ErrLost if the lock was lost. gocron ignores the error, so Unlock logs it. The context of a job ends
// when its scheduler stops, and the release has to reach the server then too.
func (l *lock) Unlock(ctx context.Context) error {
	// After a loss, the next run may have stored its hold under the name.
	l.locker.holds.CompareAndDelete(l.name, l.hold)
	err := l.hold.ReleaseAfter(context.WithoutCancel(ctx), l.locker.least)
	if err != nil {
		slog.Warn("rlockgocron: the lock of a job was lost or not released", "job", l.name, "error", err)
	}
	return err
}

// Elector is a gocron.Elector. One instance leads and runs all jobs, and another one follows when it ends or dies.
type Elector struct {
	election   *rlock.Election
	value      string
	leadership atomic.Pointer[rlock.Leadership]
	cancel     context.CancelFunc
	ended      chan struct{}
}

var _ gocron.Elector = (*Elector)(nil)

// NewElector campaigns at a key, in the background, until Close. It campaigns again after every loss and every error, a second
// later. It logs both with slog.Default, but an error that repeats only once. The value is what observers see of a leader,
// such as its address. The options apply to each campaign.
func NewElector(client *rlock.Client, key, value string, options ...rlock.Option) *Elector {
	ctx, cancel := context.WithCancel(context.Background())
	e := &Elector{election: client.Election(key, options...), value: value, cancel: cancel, ended: make(chan struct{})}
	go e.run(ctx)
	return e
}

func (e *Elector) run(ctx context.Context) {
	defer close(e.ended)
	logged := ""
	for {
		hasLed, err := e.lead(ctx)
		if ctx.Err() != nil || errors.Is(err, rlock.ErrClosed) {
			return
		}
		if hasLed || err.Error() != logged {
			logged = err.Error()
			slog.Warn("rlockgocron: this instance does not lead, and campaigns again", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// lead leads once, and returns whether it did, and why this is over.
func (e *Elector) lead(ctx context.Context) (hasLed bool, err error) {
	leadership, err := e.election.Campaign(ctx, e.value)
	if err != nil {
		return false, err
	}
	e.leadership.Store(leadership)
	defer e.leadership.Store(nil)
	select {
	case <-leadership.Context().Done():
		return true, context.Cause(leadership.Context())
	case <-ctx.Done():
		// A tick between the two would run at two leaders.
		e.leadership.Store(nil)
		return true, leadership.Resign(context.WithoutCancel(ctx))
	}
}

// IsLeader returns nil if this instance leads now by its own clock, even if it was stopped for longer than its lease; otherwise
// ErrNotLeader, rlock.ErrLost or rlock.ErrClosed.
func (e *Elector) IsLeader(context.Context) error {
	leadership := e.leadership.Load()
	if leadership == nil {
		return ErrNotLeader
	}
	return leadership.Check()
}

// Leadership returns the leadership of this instance; nil if it does not lead, and that may be so since the tick. A job sends
// its Fence with each write, and stops when its Context ends: gocron does not tell a job that its instance does not lead any
// more.
func (e *Elector) Leadership() *rlock.Leadership { return e.leadership.Load() }

// Close resigns, so that another instance leads at once, and ends the campaign. It waits for this until the context ends. Call
// it after the scheduler's Shutdown, which waits for jobs that run.
func (e *Elector) Close(ctx context.Context) error {
	e.cancel()
	select {
	case <-e.ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
