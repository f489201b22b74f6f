package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// mostAcquisitions ends a loop early: more would say nothing more.
const mostAcquisitions = 200_000

// An acquisition is [caller, asked, granted, releasing, released], the times
// in microseconds since 1970.
type acquisition [5]int64

// errorCount counts errors and shows the text of the first one.
type errorCount struct{ count atomic.Int64 }

func (e *errorCount) add(err error) {
	if e.count.Add(1) == 1 {
		fmt.Fprintln(os.Stderr, "contestant: the first error:", err)
	}
}

func now() int64 { return time.Now().UnixMicro() }

func print(line any) {
	// A write to standard output is not buffered, so there is nothing to flush.
	if err := json.NewEncoder(os.Stdout).Encode(line); err != nil {
		fmt.Fprintln(os.Stderr, "contestant: writing a line:", err)
		os.Exit(1)
	}
}

func event(name string) { print(map[string]any{"event": name}) }

func eventAt(name string) { print(map[string]any{"event": name, "at": now()}) }

// awaitLine waits for the driver's word.
func awaitLine() error {
	if !bufio.NewScanner(os.Stdin).Scan() {
		return errors.New("standard input has ended: nobody says when to go on")
	}
	return nil
}

// warmUp lets each caller acquire and release once on a key of its own, all
// at once, so that its connection is open.
func warmUp(ctx context.Context, newCaller func() (caller, error), w workload) ([]caller, error) {
	callers := make([]caller, w.callers)
	failed := make([]error, w.callers)
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			if callers[i], failed[i] = newCaller(); failed[i] != nil || w.isCold {
				return
			}
			if failed[i] = callers[i].acquire(ctx, fmt.Sprintf("%s:warm:%d", w.key, i)); failed[i] == nil {
				failed[i] = callers[i].release(ctx)
			}
		})
	}
	all.Wait()
	return callers, errors.Join(failed...)
}

// once acquires, holds and releases; it reports whether all of it succeeded.
func once(ctx context.Context, w workload, by int, c caller, key string, errs *errorCount) (acquisition, bool) {
	row := acquisition{int64(by), now()}
	if err := c.acquire(ctx, key); err != nil {
		errs.add(err)
		// An error that comes at once must not become a busy loop.
		time.Sleep(10 * time.Millisecond)
		return row, false
	}
	row[2] = now()
	if w.hold > 0 {
		time.Sleep(w.hold)
	}
	row[3] = now()
	err := c.release(ctx)
	row[4] = now()
	if err != nil {
		errs.add(err)
	}
	return row, err == nil
}

func finish(rows [][]acquisition, errs *errorCount) {
	out := bufio.NewWriter(os.Stdout)
	for _, of := range rows {
		for _, row := range of {
			fmt.Fprintf(out, "[%d,%d,%d,%d,%d]\n", row[0], row[1], row[2], row[3], row[4])
		}
	}
	if err := out.Flush(); err != nil {
		fmt.Fprintln(os.Stderr, "contestant: writing the acquisitions:", err)
	}
	print(map[string]any{"event": "done", "errors": errs.count.Load()})
}

// loop lets each caller acquire and release again and again.
func loop(ctx context.Context, w workload, callers []caller) error {
	event("ready")
	if err := awaitLine(); err != nil {
		return err
	}
	rows := make([][]acquisition, len(callers))
	var errs errorCount
	var taken atomic.Int64
	var all sync.WaitGroup
	end := time.Now().Add(time.Duration(w.seconds * float64(time.Second)))
	for i, c := range callers {
		all.Go(func() {
			key := w.key
			if w.ownKeys {
				key = fmt.Sprintf("%s:%d", w.key, i)
			}
			for time.Now().Before(end) && (w.isCold || taken.Load() < mostAcquisitions) && (w.rounds == 0 || len(rows[i]) < w.rounds) {
				if row, ok := once(ctx, w, i, c, key, &errs); ok {
					rows[i] = append(rows[i], row)
					taken.Add(1)
				}
			}
		})
	}
	all.Wait()
	finish(rows, &errs)
	return nil
}

// crowd lets all others ask for what caller 0 holds, one after the other,
// and sees them through.
func crowd(ctx context.Context, w workload, callers []caller) error {
	rows := make([][]acquisition, len(callers))
	var errs errorCount
	first := acquisition{0, now()}
	if err := callers[0].acquire(ctx, w.key); err != nil {
		return err
	}
	first[2] = now()
	var all sync.WaitGroup
	for i := 1; i < len(callers); i++ {
		asking := make(chan struct{})
		all.Go(func() {
			close(asking)
			if row, ok := once(ctx, w, i, callers[i], w.key, &errs); ok {
				rows[i] = append(rows[i], row)
			}
		})
		<-asking
		if i%askedPerMs(len(callers)) == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	time.Sleep(w.settle)
	event("settled")
	if err := awaitLine(); err != nil {
		return err
	}
	first[3] = now()
	if err := callers[0].release(ctx); err != nil {
		errs.add(err)
	}
	first[4] = now()
	rows[0] = []acquisition{first}
	all.Wait()
	finish(rows, &errs)
	return nil
}

// askedPerMs is 1 up to a crowd of 1,000; a larger one asks within a second.
func askedPerMs(callers int) int { return max(1, callers/1_000) }

func hold(ctx context.Context, w workload, callers []caller) error {
	if err := callers[0].acquire(ctx, w.key); err != nil {
		return err
	}
	eventAt("held")
	return awaitLine() // Until it is killed. It must not outlive the driver either.
}

func wait(ctx context.Context, w workload, callers []caller) error {
	eventAt("asked")
	if err := callers[0].acquire(ctx, w.key); err != nil {
		return err
	}
	eventAt("granted")
	return callers[0].release(ctx)
}
