// Contends for locks during faults, and reports what it saw to crates/rlock-client/tests/chaos/program.rs.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"rlock"
)

type call struct {
	Key     string `json:"key"`
	Verb    string `json:"verb"`
	Asked   int64  `json:"asked"`
	Limit   *int64 `json:"limit"`
	Ended   int64  `json:"ended"`
	Outcome string `json:"outcome"`
}

type hold struct {
	Key     string `json:"key"`
	Owner   string `json:"owner"`
	Fence   uint64 `json:"fence"`
	Shared  bool   `json:"shared"`
	Lease   int64  `json:"lease"`
	Asked   int64  `json:"asked"`
	Granted int64  `json:"granted"`
	First   int64  `json:"first,omitempty"`
	Last    int64  `json:"last,omitempty"`
	Doubted int64  `json:"doubted,omitempty"`
	Ended   int64  `json:"ended"`
	End     string `json:"end"`
}

var (
	mu sync.Mutex
	// Written at the end: nobody reads the pipe before.
	output bytes.Buffer
)

func note(line any) {
	mu.Lock()
	defer mu.Unlock()
	if err := json.NewEncoder(&output).Encode(line); err != nil {
		log.Fatal(err)
	}
}

// now returns microseconds of the monotonic clock.
func now() int64 {
	var spec unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &spec); err != nil {
		log.Fatal(err)
	}
	return spec.Nano() / 1000
}

type contender struct {
	client *rlock.Client
	key    string
	copies uint16
	chance *rand.Rand
}

func (c *contender) between(least, most int) time.Duration {
	return time.Duration(least+c.chance.IntN(most-least)) * time.Millisecond
}

func (c *contender) ask(stop context.Context) (*rlock.Hold, *hold) {
	lease, terms := 600*time.Millisecond, []rlock.Option{}
	if kind := c.chance.IntN(6); kind == 0 {
		terms = append(terms, rlock.FixedLease(lease))
	} else {
		lease = time.Duration(1+kind/3) * time.Second
		terms = append(terms, rlock.Lease(lease))
	}
	isShared := c.key == "shared" && c.chance.IntN(3) > 0
	if isShared {
		terms = append(terms, rlock.Shared())
	}
	copies, copying := uint16(0), int64(0)
	if c.key == "copied" && c.copies > 0 {
		copies, copying = c.copies, 1_000_000
		terms = append(terms, rlock.Replicas(copies))
	} else if c.chance.IntN(4) == 0 {
		terms = append(terms, rlock.Bound(c.between(400, 1500)))
	}
	asking := &call{Key: c.key, Verb: "wait"}
	switch wait := c.between(50, 3000); c.chance.IntN(4) {
	case 0:
		limit := 4_000_000 + copying
		asking.Verb, asking.Limit = "try", &limit
		terms = append(terms, rlock.Wait(0))
	case 1:
		limit := wait.Microseconds() + 1_000_000 + copying
		asking.Verb, asking.Limit = "wait with a limit", &limit
		terms = append(terms, rlock.Wait(wait))
	}
	patience := 20 * time.Second
	if c.chance.IntN(8) == 0 {
		patience = c.between(0, 100)
	}
	ctx, cancel := context.WithTimeout(stop, patience)
	defer cancel()
	asking.Asked = now()
	held, err := c.client.Lock(ctx, c.key, terms...)
	asking.Ended, asking.Outcome = now(), outcome(err, "granted")
	note(asking)
	if err != nil {
		return nil, nil
	}
	return held, &hold{
		Key: c.key, Owner: held.Owner(), Fence: held.Fence(), Shared: isShared, Lease: lease.Microseconds(),
		Asked: asking.Asked, Granted: asking.Ended,
	}
}

func outcome(err error, fine string) string {
	var kind *rlock.Error
	switch {
	case err == nil:
		return fine
	case errors.As(err, &kind):
		return kind.Code
	default:
		return "dropped"
	}
}

// sample records whether the lock is valid, both before and after reading the clock.
func (h *hold) sample(held *rlock.Hold) bool {
	before, moment := held.Check() == nil, now()
	if before && held.Check() == nil {
		if h.First == 0 {
			h.First = moment
		}
		h.Last = moment
		return true
	}
	if h.Doubted == 0 {
		h.Doubted = moment
	}
	return false
}

func (c *contender) run(stop context.Context) {
	for ; stop.Err() == nil; time.Sleep(c.between(5, 100)) {
		held, seen := c.ask(stop)
		if held == nil {
			continue
		}
		lengths := []time.Duration{c.between(800, 2500), c.between(100, 800), c.between(5, 100), c.between(5, 100)}
		until := now() + lengths[c.chance.IntN(4)].Microseconds()
		isHeld := seen.sample(held)
		for isHeld && now() < until && stop.Err() == nil {
			time.Sleep(2 * time.Millisecond)
			isHeld = seen.sample(held)
		}
		limit := int64(4_000_000)
		release := &call{Key: c.key, Verb: "release", Asked: now(), Limit: &limit}
		seen.Ended, seen.End = now(), "released"
		if !isHeld {
			seen.End = "lost"
		}
		release.Outcome = outcome(held.Release(context.Background()), "released")
		release.Ended = now()
		note(release)
		note(seen)
	}
}

func main() {
	client, err := rlock.NewClient(os.Getenv("RLOCK_URL"), rlock.Options{
		ResponseTimeout: time.Second, RetryTimeout: 4 * time.Second,
	})
	if err != nil {
		log.Fatal(err)
	}
	seed, _ := strconv.ParseUint(os.Getenv("RLOCK_SEED"), 10, 64)
	copies, _ := strconv.ParseUint(os.Getenv("RLOCK_COPIES"), 10, 16)
	stop, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for index, key := range strings.Fields(os.Getenv("RLOCK_KEYS")) {
		chance := rand.New(rand.NewPCG(seed, uint64(index)))
		each := &contender{client, key, uint16(copies), chance}
		all.Go(func() { each.run(stop) })
	}
	io.Copy(io.Discard, os.Stdin)
	cancel()
	all.Wait()
	closing, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	client.Close(closing)
	if _, err := output.WriteTo(os.Stdout); err != nil {
		log.Fatal(err)
	}
}
