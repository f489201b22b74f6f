package rlock

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"
)

// observer loops over changes, and a test takes them one by one.
func observer(t testing.TB, c *Client, key string) (next func() (Change, error)) {
	pull, stop := iter.Pull2(c.Election(key).Observe(background))
	t.Cleanup(stop)
	return func() (Change, error) {
		change, err, is := pull()
		isTrue(t, is, "the loop has ended")
		return change, err
	}
}

func shown(change Change, err error) string {
	switch {
	case err != nil:
		return err.Error()
	case change.Leader == nil:
		return fmt.Sprint("nobody ", change.Missed)
	default:
		return fmt.Sprint(change.Leader.Value, " ", change.Missed)
	}
}

func TestElection(t *testing.T) {
	t.Parallel()
	s := start(t)
	a, b, other := connect(t, s.URL, Options{}), connect(t, s.URL, Options{}), connect(t, s.URL, Options{})
	observers := []func() (Change, error){observer(t, a, "k"), observer(t, other, "k"), observer(t, other, "k")}
	for _, next := range observers {
		isTrue(t, shown(next()) == "nobody false")
	}
	first := must(a.Election("k").Campaign(background, "a:1"))(t)
	_, err := other.Election("k").Campaign(background, "c", Wait(0))
	is(t, err, ErrNotAcquired)
	_, err = other.Election("k", Wait(20*time.Millisecond)).Campaign(background, "c")
	is(t, err, ErrNotAcquired)
	var second *Leadership
	waits := inBackground(func() (*Hold, error) {
		leadership, err := b.Election("k").Campaign(background, "b\xff\x00:1")
		if err != nil {
			return nil, err
		}
		second = leadership
		return leadership.Hold, nil
	})
	eventually(t, "it waits", func() bool { return isQueued(t, s.port(), "k", 1) })
	done(t, first.Proclaim(background, "a:2"))
	leader := must(other.Election("k").Leader(background))(t)
	isTrue(t, leader.Fence == first.Fence() && leader.Value == "a:2" && leader.Owner == first.Owner(), leader)
	isTrue(t, leader.TimeLeft > 25*time.Second && leader.TimeLeft <= 30*time.Second, leader)
	done(t, first.Resign(background))
	waits(t)
	isTrue(t, second.Fence() > first.Fence())
	done(t, second.Resign(background))
	for _, next := range observers {
		for _, wanted := range []string{"a:1 false", "a:2 false", "b\xff\x00:1 false", "nobody false"} {
			seen := shown(next())
			isTrue(t, seen == wanted, seen)
		}
	}
	isTrue(t, must(other.Election("k").Leader(background))(t) == nil)
	isTrue(t, connections(t, s.port()) == 3)
}

func TestElectionArguments(t *testing.T) {
	t.Parallel()
	c := connect(t, start(t).URL, Options{})
	election := c.Election("k", FixedLease(200*time.Millisecond))
	_, err := election.Campaign(background, strings.Repeat("x", 1025))
	is(t, err, ErrOutOfRange)
	isTrue(t, strings.Contains(err.Error(), "1025 bytes"), err)
	_, err = election.Campaign(background, "", Shared())
	is(t, err, ErrOutOfRange)
	leadership := must(election.Campaign(background, ""))(t)
	is(t, leadership.Proclaim(background, strings.Repeat("x", 1025)), ErrOutOfRange)
	done(t, leadership.Check())
	<-leadership.Context().Done()
	is(t, context.Cause(leadership.Context()), ErrLost)
	is(t, leadership.Proclaim(background, "x"), ErrLost)
	// The client does not write behind the end of a caller's slice.
	options := []Option{Lease(time.Minute), Wait(time.Minute)}
	must(c.TryLock(background, "l", options[:1]...))(t)
	ctx, cancel := context.WithTimeout(background, 100*time.Millisecond)
	defer cancel()
	_, err = c.Lock(ctx, "l", options...)
	is(t, err, context.DeadlineExceeded)
}

func TestObserversBeginAgain(t *testing.T) {
	t.Parallel()
	s := start(t)
	net := newNetwork(t, s.port())
	c, leader := connect(t, net.url, Options{}), connect(t, s.URL, Options{})
	next := observer(t, c, "k")
	isTrue(t, shown(next()) == "nobody false")
	net.cut()
	seen := shown(next())
	isTrue(t, seen == "nobody true", seen)
	leadership := must(leader.Election("k").Campaign(background, "v"))(t)
	change, err := next()
	isTrue(t, shown(change, err) == "v false" && change.Leader.Fence == leadership.Fence())
	ask(t, s.port(), "RLOCK.FORCE", "k")
	isTrue(t, shown(next()) == "nobody false")
	<-leadership.Context().Done()
}

func TestObserversThatEndLeaveNothing(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := connect(t, s.URL, Options{})
	isSubscribed := func() bool {
		return strings.HasSuffix(ask(t, s.port(), "PUBSUB", "NUMSUB", "rlock:value:{k}"), ":1\r\n")
	}
	for change, err := range c.Election("k").Observe(background) {
		isTrue(t, shown(change, err) == "nobody false" && isSubscribed())
		break
	}
	eventually(t, "it has left", func() bool { return !isSubscribed() })
	ctx, cancel := context.WithCancel(background)
	time.AfterFunc(100*time.Millisecond, cancel)
	var seen []string
	for change, err := range c.Election("k").Observe(ctx) {
		seen = append(seen, shown(change, err))
	}
	isTrue(t, slices.Equal(seen, []string{"nobody false", "context canceled"}), seen)
	eventually(t, "it has left", func() bool { return !isSubscribed() })
	ask(t, s.port(), "RLOCK.ACQUIRE", "k", "other", "60000")
	short, cancel := context.WithTimeout(background, 50*time.Millisecond)
	defer cancel()
	_, err := c.Election("k").Campaign(short, "x")
	is(t, err, context.DeadlineExceeded)
	eventually(t, "it has left", func() bool { return isQueued(t, s.port(), "k", 0) })
}

func TestObserversEndWithTheirClient(t *testing.T) {
	t.Parallel()
	c := connect(t, start(t).URL, Options{})
	next := observer(t, c, "k")
	isTrue(t, shown(next()) == "nobody false")
	time.AfterFunc(50*time.Millisecond, func() { c.Close(background) })
	_, err := next()
	is(t, err, ErrClosed)
	_, err = observer(t, c, "k")()
	is(t, err, ErrClosed)
}

func TestChangesThatAreNotTaken(t *testing.T) {
	t.Parallel()
	c := connect(t, start(t).URL, Options{})
	next := observer(t, c, "k")
	isTrue(t, shown(next()) == "nobody false")
	leadership := must(c.Election("k").Campaign(background, "0"))(t)
	for i := 1; i <= 1100; i++ {
		done(t, leadership.Proclaim(background, fmt.Sprint(i)))
	}
	seen := shown(next())
	isTrue(t, seen == "77 true", seen)
	count := 1
	for ; seen != "1100 false"; count++ {
		seen = shown(next())
	}
	isTrue(t, count == changesMax, count)
	done(t, leadership.Release(background))
}

func TestObserversWithoutRights(t *testing.T) {
	t.Parallel()
	s := start(t)
	ask(t, s.port(), "ACL", "SETUSER", "app", "on", ">secret", "~*", "&rlock:client:*", "+@all")
	c := connect(t, strings.Replace(s.URL, "redis://", "redis://app:secret@", 1), Options{})
	_, err := observer(t, c, "k")()
	is(t, err, ErrDenied)
	isTrue(t, strings.Contains(err.Error(), "channel"), err)
	done(t, must(c.Election("k").Campaign(background, "v"))(t).Resign(background))
}
