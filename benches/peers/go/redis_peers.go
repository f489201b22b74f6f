package main

import (
	"context"
	"math"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// never is a deadline that no wait reaches.
const never = 24 * time.Hour

// goRedis is one client with a connection for each caller, and some more.
func goRedis(w workload) (*redis.Client, error) {
	options, err := redis.ParseURL(w.url)
	if err != nil {
		return nil, err
	}
	options.PoolSize = w.callers + 4
	return redis.NewClient(options), nil
}

var redsyncPeer = peer{
	Name: "redsync", Title: "redsync", Waits: "polls, every 50 to 250 ms at random",
	Settings: "go-redis with a connection for each caller; tries 2147483647 (32), so that nobody gives up; expiry from the workload (8 s)",
	module:   "github.com/go-redsync/redsync/v4",
	open: func(_ context.Context, w workload) (func() (caller, error), error) {
		client, err := goRedis(w)
		if err != nil {
			return nil, err
		}
		locks := redsync.New(goredis.NewPool(client))
		options := []redsync.Option{redsync.WithTries(math.MaxInt32), redsync.WithExpiry(w.lease)}
		return func() (caller, error) { return &redsyncCaller{locks: locks, options: options}, nil }, nil
	},
}

type redsyncCaller struct {
	locks   *redsync.Redsync
	options []redsync.Option
	held    *redsync.Mutex
}

func (c *redsyncCaller) acquire(ctx context.Context, key string) error {
	c.held = c.locks.NewMutex(key, c.options...)
	return c.held.LockContext(ctx)
}

func (c *redsyncCaller) release(ctx context.Context) error {
	_, err := c.held.UnlockContext(ctx)
	return err
}

var redislockPeer = peer{
	Name: "bsm-redislock", Title: "bsm/redislock", Waits: "polls, every 100 ms",
	Settings: "go-redis with a connection for each caller; LinearBackoff(100 ms), as in its documentation's example (by default it does not wait); a deadline of 24 h (the lease), so that nobody gives up",
	module:   "github.com/bsm/redislock",
	open: func(_ context.Context, w workload) (func() (caller, error), error) {
		client, err := goRedis(w)
		if err != nil {
			return nil, err
		}
		locks := redislock.New(client)
		return func() (caller, error) { return &redislockCaller{locks: locks, lease: w.lease}, nil }, nil
	},
}

type redislockCaller struct {
	locks *redislock.Client
	lease time.Duration
	held  *redislock.Lock
}

func (c *redislockCaller) acquire(ctx context.Context, key string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, never)
	defer cancel()
	every := &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)}
	c.held, err = c.locks.Obtain(ctx, key, c.lease, every)
	return err
}

func (c *redislockCaller) release(ctx context.Context) error { return c.held.Release(ctx) }

var setNXPeer = peer{
	Name: "set-nx-px", Title: "SET NX PX, DEL", Waits: "does not wait",
	Settings: "a yardstick: the two plain commands by go-redis; a lock that is held is an error",
	module:   "github.com/redis/go-redis/v9",
	open: func(_ context.Context, w workload) (func() (caller, error), error) {
		client, err := goRedis(w)
		return func() (caller, error) { return &setNXCaller{client: client, lease: w.lease}, nil }, err
	},
}

type setNXCaller struct {
	client *redis.Client
	lease  time.Duration
	key    string
}

func (c *setNXCaller) acquire(ctx context.Context, key string) error {
	c.key = key
	// Answers redis.Nil if the key exists.
	return c.client.SetArgs(ctx, key, "holder", redis.SetArgs{Mode: "NX", TTL: c.lease}).Err()
}

func (c *setNXCaller) release(ctx context.Context) error { return c.client.Del(ctx, c.key).Err() }
