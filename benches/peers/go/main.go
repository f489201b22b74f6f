// Command contestant runs one lock library of Go under one workload, for
// `make compare`. Events and acquisitions go to standard output, one JSON
// value a line; everything else goes to standard error.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"
)

// A caller is one user of a lock: it acquires and releases one lock at a time.
type caller interface {
	acquire(ctx context.Context, key string) error
	release(ctx context.Context) error
}

// A peer is one lock library, and how it is used here.
type peer struct {
	Name     string `json:"name"`
	Title    string `json:"title"`
	Version  string `json:"version"`
	Language string `json:"language"`
	Waits    string `json:"waits"`
	Settings string `json:"settings"`

	module string
	// open connects once for the whole program; its result makes callers.
	open func(ctx context.Context, w workload) (func() (caller, error), error)
}

// A workload says what to do; durations of zero mean none.
type workload struct {
	url     string
	key     string
	ownKeys bool
	isCold  bool // Nothing is warmed up, and a loop has no limit but its time.
	callers int
	rounds  int
	seconds float64
	hold    time.Duration
	settle  time.Duration
	lease   time.Duration
}

var peers = []peer{redsyncPeer, redislockPeer, etcdPeer, rlockPeer, setNXPeer}

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "contestant:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	list := flag.Bool("list", false, "print the peers as one line of JSON")
	name := flag.String("peer", "", "the library to run")
	mode := flag.String("mode", "", "loop, start, crowd, hold or wait")
	w, err := parse()
	if err != nil {
		return err
	}
	if *list {
		print(described())
		return nil
	}
	chosen, err := find(*name)
	if err != nil {
		return err
	}
	modes := map[string]func(context.Context, workload, []caller) error{
		"loop": loop, "start": loop, "crowd": crowd, "hold": hold, "wait": wait,
	}
	begin, ok := modes[*mode]
	if !ok {
		return fmt.Errorf("--mode is %q: it must be loop, start, crowd, hold or wait", *mode)
	}
	w.isCold = *mode == "start"
	callers, err := connect(ctx, chosen, w, *mode)
	if err != nil {
		return err
	}
	return begin(ctx, w, callers)
}

func parse() (workload, error) {
	var w workload
	keys := flag.String("keys", "shared", "shared: one key for all; own: a key for each caller")
	holdUs := flag.Int64("hold-us", 0, "how long each lock is held, in microseconds")
	settleMs := flag.Int64("settle-ms", 200, "crowd: how long after the last has asked, in milliseconds")
	leaseMs := flag.Int64("lease-ms", 30_000, "lease of each lock, in milliseconds")
	flag.StringVar(&w.url, "url", "", "of the server")
	flag.StringVar(&w.key, "key", "compare", "name of the lock")
	flag.IntVar(&w.callers, "callers", 1, "how many callers there are at once")
	flag.IntVar(&w.rounds, "rounds", 0, "loop: at most this many acquisitions for each caller; 0: no limit")
	flag.Float64Var(&w.seconds, "seconds", 1, "loop: how long")
	flag.Parse()
	w.ownKeys = *keys == "own"
	w.hold = time.Duration(*holdUs) * time.Microsecond
	w.settle = time.Duration(*settleMs) * time.Millisecond
	w.lease = time.Duration(*leaseMs) * time.Millisecond
	switch {
	case *keys != "own" && *keys != "shared":
		return w, fmt.Errorf("--keys is %q: it must be shared or own", *keys)
	case w.callers < 1:
		return w, fmt.Errorf("--callers is %d: it must be 1 or more", w.callers)
	case *leaseMs < 1:
		return w, fmt.Errorf("--lease-ms is %d: it must be 1 or more", *leaseMs)
	case flag.NArg() > 0:
		return w, fmt.Errorf("%q is no option", flag.Arg(0))
	}
	return w, nil
}

func find(name string) (peer, error) {
	var names []string
	for _, each := range peers {
		if each.Name == name {
			return each, nil
		}
		names = append(names, each.Name)
	}
	return peer{}, fmt.Errorf("--peer is %q: it must be one of %s", name, strings.Join(names, ", "))
}

// described fills in the versions that this program was built with.
func described() []peer {
	versions := map[string]string{}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dependency := range info.Deps {
			versions[dependency.Path] = strings.TrimPrefix(dependency.Version, "v")
		}
	}
	result := make([]peer, 0, len(peers))
	for _, each := range peers {
		each.Language = "Go"
		if each.Version = versions[each.module]; each.module == "" {
			each.Version = version
		}
		result = append(result, each)
	}
	return result
}

// connect makes the callers of a mode. Unless nothing is warmed up, each of
// them acquires and releases once on a key of its own, so that its connection
// is open.
func connect(ctx context.Context, chosen peer, w workload, mode string) ([]caller, error) {
	count := w.callers
	if mode == "crowd" {
		count++
	} else if mode != "loop" && mode != "start" {
		count = 1
	}
	w.callers = count
	newCaller, err := chosen.open(ctx, w)
	if err != nil {
		return nil, err
	}
	return warmUp(ctx, newCaller, w)
}
