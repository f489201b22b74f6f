package main

import (
	"context"
	"time"

	rlock "rlock"
)

// version is that of this repository; ./build sets it.
var version = "unknown"

var rlockPeer = peer{
	Name: "rlock-go", Title: "rlock, clients/go", Waits: "server queue",
	Settings: "go-redis with a connection for each caller, one Locks for all; lease from the workload (30 s), renewed",
	open: func(_ context.Context, w workload) (func() (caller, error), error) {
		client, err := goRedis(w)
		if err != nil {
			return nil, err
		}
		locks, err := rlock.New(client)
		return func() (caller, error) { return &rlockCaller{locks: locks, lease: w.lease}, nil }, err
	},
}

type rlockCaller struct {
	locks *rlock.Locks
	lease time.Duration
	held  *rlock.Held
}

func (c *rlockCaller) acquire(ctx context.Context, key string) (err error) {
	c.held, err = c.locks.Lock(ctx, key, rlock.Lease(c.lease))
	return err
}

func (c *rlockCaller) release(context.Context) error { return c.held.Release() }
