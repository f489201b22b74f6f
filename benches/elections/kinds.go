package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// By plain commands, each candidate and each observer on a connection of its own.
func rlockKind(name string, options []any) kind {
	connect := func(address string) *redis.Client {
		return redis.NewClient(&redis.Options{Addr: address, ReadTimeout: -1, PoolSize: 2, MaxRetries: -1})
	}
	return kind{
		name: name, rounds: rounds,
		candidate: func(address, name string) candidate {
			return &rlockCandidate{client: connect(address), key: election, owner: name, options: options}
		},
		observe: func(ctx context.Context, address string, told func(string)) {
			client := connect(address)
			defer client.Close()
			// Without the PING every 3 s by which go-redis looks after a connection: it would count as a request.
			channel := client.Subscribe(ctx, "rlock:value:{"+election+"}").Channel(redis.WithChannelHealthCheckInterval(0))
			for {
				select {
				case <-ctx.Done():
					return
				case message := <-channel:
					if _, value, leads := strings.Cut(message.Payload, " "); leads {
						told(value)
					}
				}
			}
		},
		requests: func(address string) int {
			client := connect(address)
			defer client.Close()
			info, err := client.InfoMap(context.Background(), "stats").Result()
			check(err)
			count := 0
			_, err = fmt.Sscan(info["Stats"]["total_commands_processed"], &count)
			check(err)
			return count
		},
	}
}

type rlockCandidate struct {
	client     *redis.Client
	key, owner string
	options    []any
	stop       context.CancelFunc
}

func (c *rlockCandidate) campaign(ctx context.Context) {
	words := []any{"RLOCK.ACQUIRE", c.key, c.owner, lease.Milliseconds(), "WAIT", 0, "VALUE", c.owner}
	err := c.client.Do(ctx, append(words, c.options...)...).Err()
	if ctx.Err() != nil {
		return
	}
	check(err)
	ctx, c.stop = context.WithCancel(ctx)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(lease / 3):
				c.client.Do(ctx, "RLOCK.RENEW", c.key, c.owner, lease.Milliseconds())
			}
		}
	}()
}

func (c *rlockCandidate) resign() {
	c.stop()
	check(c.client.Do(context.Background(), "RLOCK.RELEASE", c.key, c.owner).Err())
}

func etcdClient(address string) *clientv3.Client {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{address}, DialTimeout: 5 * time.Second, Logger: zap.NewNop(),
	})
	check(err)
	return client
}

func etcdKind() kind {
	return kind{
		name: "etcd `concurrency.Election`", rounds: rounds, isEtcd: true, requests: etcdRequests,
		candidate: func(address, name string) candidate {
			session, err := concurrency.NewSession(etcdClient(address), concurrency.WithTTL(int(lease.Seconds())))
			check(err)
			return &etcdCandidate{concurrency.NewElection(session, election), name}
		},
		observe: func(ctx context.Context, address string, told func(string)) {
			session, err := concurrency.NewSession(etcdClient(address))
			check(err)
			for response := range concurrency.NewElection(session, election).Observe(ctx) {
				told(string(response.Kvs[0].Value))
			}
		},
	}
}

type etcdCandidate struct {
	election *concurrency.Election
	name     string
}

func (c *etcdCandidate) campaign(ctx context.Context) { _ = c.election.Campaign(ctx, c.name) }
func (c *etcdCandidate) resign()                      { check(c.election.Resign(context.Background())) }

// client-go's leaderelection. Its record is a key in etcd, written by compare and swap, as the API server does it;
// who observes watches that key.
func clientGoKind() kind {
	klog.SetLogger(logr.Discard())
	return kind{
		name: "client-go `leaderelection`", rounds: 5, isEtcd: true, requests: etcdRequests,
		candidate: func(address, name string) candidate {
			return &clientGoCandidate{lock: &etcdLock{client: etcdClient(address), name: name, record: election}}
		},
		observe: func(ctx context.Context, address string, told func(string)) {
			last := ""
			for changes := range etcdClient(address).Watch(ctx, election) {
				for _, change := range changes.Events {
					var it resourcelock.LeaderElectionRecord
					check(json.Unmarshal(change.Kv.Value, &it))
					if it.HolderIdentity != last {
						last = it.HolderIdentity
						told(last)
					}
				}
			}
		},
	}
}

type clientGoCandidate struct {
	lock *etcdLock
	stop context.CancelFunc
	over chan struct{}
}

func (c *clientGoCandidate) campaign(ctx context.Context) {
	leads := make(chan struct{})
	ctx, c.stop = context.WithCancel(ctx)
	c.over = make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: c.lock, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(leads) }, OnStoppedLeading: func() {},
		},
	})
	check(err)
	go func() {
		elector.Run(ctx)
		close(c.over)
	}()
	select {
	case <-leads:
	case <-ctx.Done():
	}
}

func (c *clientGoCandidate) resign() {
	c.stop()
	<-c.over
}

type etcdLock struct {
	client       *clientv3.Client
	name, record string
	revision     int64
}

func (l *etcdLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	answer, err := l.client.Get(ctx, l.record)
	if err != nil {
		return nil, nil, err
	}
	if len(answer.Kvs) == 0 {
		return nil, nil, errors.NewNotFound(schema.GroupResource{}, l.record)
	}
	l.revision = answer.Kvs[0].ModRevision
	it := &resourcelock.LeaderElectionRecord{}
	return it, answer.Kvs[0].Value, json.Unmarshal(answer.Kvs[0].Value, it)
}

func (l *etcdLock) Create(ctx context.Context, it resourcelock.LeaderElectionRecord) error {
	l.revision = 0
	return l.Update(ctx, it)
}

func (l *etcdLock) Update(ctx context.Context, it resourcelock.LeaderElectionRecord) error {
	text, err := json.Marshal(it)
	check(err)
	same := clientv3.Compare(clientv3.ModRevision(l.record), "=", l.revision)
	answer, err := l.client.Txn(ctx).If(same).Then(clientv3.OpPut(l.record, string(text))).Commit()
	if err != nil {
		return err
	}
	if !answer.Succeeded {
		return fmt.Errorf("the record has changed")
	}
	l.revision = answer.Header.Revision
	return nil
}

func (l *etcdLock) RecordEvent(string) {}
func (l *etcdLock) Identity() string   { return l.name }
func (l *etcdLock) Describe() string   { return l.record }
