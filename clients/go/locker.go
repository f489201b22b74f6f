package rlock

import (
	"context"
	"errors"
	"log/slog"
	"sync"
)

// Locker returns the lock of a key as a sync.Locker, for code that takes one. Several goroutines may use it.
//
// Its methods return no error, so they panic with an *Error: Lock if it does not get the lock, which without Wait is only so
// after a refusal and after Close, and Unlock with ErrLost if the lock was lost before, because others may have had it since
// then. With IgnoreLoss, Unlock does not panic for a loss. If the server does not answer the release, Unlock logs it: the lock
// then becomes free when its lease ends. Where an error can be handled, use Client.Run.
func (c *Client) Locker(key string, options ...Option) sync.Locker {
	return &locker{client: c, key: key, options: options}
}

type locker struct {
	client  *Client
	key     string
	options []Option
	mu      sync.Mutex // Held together with the lock, so that a goroutine never releases the hold of another one after a loss.
	hold    *Hold
}

func (l *locker) Lock() {
	l.mu.Lock()
	hold, err := l.client.Lock(context.Background(), l.key, l.options...)
	if err != nil {
		l.mu.Unlock()
		panic(err)
	}
	l.hold = hold
}

func (l *locker) Unlock() {
	hold := l.hold
	if hold == nil {
		panic("rlock: Unlock of " + l.key + ", which is not locked")
	}
	l.hold = nil
	err := hold.Release(context.Background())
	l.mu.Unlock()
	switch {
	case errors.Is(err, ErrLost):
		panic(err)
	case err != nil:
		l.client.log(slog.LevelWarn, hold.text()+": not released: "+err.Error())
	}
}
