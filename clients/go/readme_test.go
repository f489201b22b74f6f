package rlock

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

func TestTheReadmeShowsOnlyCodeThatIsRunHere(t *testing.T) {
	t.Parallel()
	words := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(string(text), "\t", "")
	}
	run := words("readme_test.go")
	blocks := strings.Split(words("README.md"), "```go\n")[1:]
	if len(blocks) != 4 {
		t.Errorf("%d blocks, must be 4", len(blocks))
	}
	for _, block := range blocks {
		code, _, _ := strings.Cut(block, "```")
		if !strings.Contains(run, code) {
			t.Errorf("nobody runs this:\n%s", code)
		}
	}
}

func store(context.Context, int64) error { return nil } // What the examples protect.

func TestTheExampleHoldsTheLock(t *testing.T) {
	t.Parallel()
	client := connect(t, shared.address())
	run := func(ctx context.Context) error {
		locks, err := New(client)
		if err != nil {
			return err
		}
		defer locks.Close()

		held, err := locks.Lock(ctx, "invoice:7", Wait(10*time.Second))
		if err != nil {
			return err // ErrNotAcquired after 10 s.
		}
		defer held.Release()
		return store(held.Context(), held.Fence()) // The context ends when the lock is lost.
	}
	if err := run(t.Context()); err != nil {
		t.Error(err)
	}
	isFree(t, client, "invoice:7")

	locks := locksOf(t, client)
	pair := func(ctx context.Context) error {
		three, err := locks.Lock(ctx, "gpu", Limit(4), Permits(3), Lease(time.Minute))
		if err != nil {
			return err
		}
		defer three.Release()
		both, err := locks.LockAll(ctx, []string{"account:1", "account:2"}, Owner(three.Owner()))
		var refusal *ServerError
		if errors.As(err, &refusal) && refusal.Word == "DEADLOCK" {
			return err // Release what is held, and begin again.
		}
		if err != nil {
			return err
		}
		return both.Release()
	}
	if err := pair(t.Context()); err != nil {
		t.Error(err)
	}
}

// A recipe has a name of its own, so that it can be shown as it is run.
type recipe func(ctx context.Context, key string, work func(fence int64) error) error

func tryRecipe(t *testing.T, key string, run recipe) {
	t.Helper()
	client := connect(t, shared.address())
	locks := locksOf(t, client)
	holder := lock(t, locks, key)
	done := make(chan error, 1)
	go func() {
		done <- run(t.Context(), key, func(fence int64) error {
			if fence <= holder.Fence() || info(t, client, key, "mode") != "exclusive" {
				t.Errorf("fence %d after %d", fence, holder.Fence())
			}
			return nil
		})
	}()
	queued(t, client, key, "1")
	time.Sleep(6 * time.Second) // More than the usual time limit of a reply.
	release(t, holder)
	if err := <-done; err != nil {
		t.Error(err)
	}
	isFree(t, client, key)

	holder = lock(t, locks, key)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- run(ctx, key, func(int64) error { return errors.New("held") }) }()
	queued(t, client, key, "1")
	cancel()
	if err := <-done; err == nil || err.Error() == "held" {
		t.Errorf("%v after cancelling", err)
	}
	if places := info(t, client, key, "queued"); places != "0" {
		t.Errorf("%s places are left", places)
	}
	release(t, holder)
}

func TestTheRecipeForGoRedisWaitsAndCleansUp(t *testing.T) {
	t.Parallel()
	client := connect(t, shared.address())
	options := *client.Options() // Waits have a pool of their own, with a longer time limit.
	options.ReadTimeout = 15 * time.Second
	waits := redis.NewClient(&options)
	defer waits.Close()

	withLock := func(ctx context.Context, key string, work func(fence int64) error) error {
		owner, always := "job:"+rand.Text(), context.WithoutCancel(ctx)
		defer func() {
			client.Do(always, "RLOCK.CANCEL", key, owner)
			client.Do(always, "RLOCK.RELEASE", key, owner)
		}()
		stop := context.AfterFunc(ctx, func() { client.Do(always, "RLOCK.CANCEL", key, owner) })
		fence, err := waits.Do(always, "RLOCK.ACQUIRE", key, owner, 30_000, "WAIT", 10_000).Int64()
		stop()
		if err != nil {
			return err // redis.Nil: the wait is over.
		}
		return work(fence) // At most 30 s, or send RLOCK.RENEW every 10 s.
	}
	tryRecipe(t, t.Name(), withLock)
}

func TestTheRecipeForRueidisWaitsAndCleansUp(t *testing.T) {
	t.Parallel()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{shared.address()}, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()

	withLock := func(ctx context.Context, key string, work func(fence int64) error) error {
		owner, always := "job:"+rand.Text(), context.WithoutCancel(ctx)
		send := func(name string, args ...string) rueidis.RedisResult {
			return client.Do(always, client.B().Arbitrary(name).Keys(key).Args(owner).Args(args...).Build())
		}
		defer func() {
			send("RLOCK.CANCEL")
			send("RLOCK.RELEASE")
		}()
		stop := context.AfterFunc(ctx, func() { send("RLOCK.CANCEL") })
		acquire := client.B().Arbitrary("RLOCK.ACQUIRE").Keys(key).Args(owner, "30000", "WAIT", "10000").Blocking()
		fence, err := client.Do(always, acquire).AsInt64() // Blocking: a connection of its own, without a time limit.
		stop()
		if err != nil {
			return err // rueidis.IsRedisNil(err): the wait is over.
		}
		return work(fence) // At most 30 s, or send("RLOCK.RENEW", "30000") every 10 s.
	}
	tryRecipe(t, t.Name(), withLock)
}
