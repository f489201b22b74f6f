package main

import (
	"context"
	"time"

	"rlock"
)

// version is this repository's; ./build sets it.
var version = "unknown"

var rlockPeer = peer{
	Name: "rlock-go", Title: "rlock, clients/go", Waits: "server queue",
	Settings: "one client for all; lease from the workload (30 s), renewed",
	open: func(_ context.Context, w workload) (func() (caller, error), error) {
		client, err := rlock.NewClient(w.url, rlock.Options{})
		return func() (caller, error) { return &rlockCaller{client: client, lease: w.lease}, nil }, err
	},
}

type rlockCaller struct {
	client *rlock.Client
	lease  time.Duration
	hold   *rlock.Hold
}

func (c *rlockCaller) acquire(ctx context.Context, key string) (err error) {
	c.hold, err = c.client.Lock(ctx, key, rlock.Lease(c.lease))
	return err
}

func (c *rlockCaller) release(ctx context.Context) error { return c.hold.Release(ctx) }
