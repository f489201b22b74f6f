package main

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

var etcdPeer = peer{
	Name: "etcd-concurrency", Title: "etcd concurrency.Mutex", Waits: "server queue, watches the one before it",
	Settings: "one client, a session for each caller; its TTL is the lease of the workload in whole seconds (60 s)",
	module:   "go.etcd.io/etcd/client/v3",
	open: func(ctx context.Context, w workload) (func() (caller, error), error) {
		client, err := clientv3.New(clientv3.Config{
			Endpoints: []string{w.url}, DialTimeout: 5 * time.Second, Context: ctx, Logger: zap.NewNop(),
		})
		if err != nil {
			return nil, err
		}
		seconds := int((w.lease + time.Second - 1) / time.Second)
		return func() (caller, error) {
			session, err := concurrency.NewSession(client, concurrency.WithTTL(seconds))
			return &etcdCaller{session: session}, err
		}, nil
	},
}

type etcdCaller struct {
	session *concurrency.Session
	held    *concurrency.Mutex
}

func (c *etcdCaller) acquire(ctx context.Context, key string) error {
	c.held = concurrency.NewMutex(c.session, "/"+key)
	return c.held.Lock(ctx)
}

func (c *etcdCaller) release(ctx context.Context) error { return c.held.Unlock(ctx) }
