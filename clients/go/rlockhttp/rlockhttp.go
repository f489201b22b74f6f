// Package rlockhttp runs handlers of net/http while a lock is held.
//
//	mux.Handle("POST /invoices/{id}", rlockhttp.Handler(client, invoice, pay))
//
// It is a package of its own because programs without a web server should not contain net/http.
package rlockhttp

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"

	"rlock"
)

// Locks is a *rlock.Client or a *quorum.Quorum.
type Locks interface {
	Run(ctx context.Context, key string, work func(context.Context, *rlock.Hold) error, options ...rlock.Option) error
}

type held struct{}

// Handler runs next while the lock is held whose key the request has, and releases it when next returns or panics. It asks once
// for the lock; with the option Wait it waits so long, or until the caller of the request leaves.
//
// Without the lock, next does not run. The answer is then 409 if somebody else holds the lock, 503 if no server can be reached
// or for another error that may pass, and 500 for the others, such as an empty key. Handler logs those of 500 with slog.Default.
// While no server can be reached, it tries for Options.RetryTimeout of the client before it answers 503.
//
// If the lock is lost, the context of the request ends, and Handler logs it after next has returned. The caller gets the answer
// of next.
func Handler(locks Locks, key func(*http.Request) string, next http.Handler, options ...rlock.Option) http.Handler {
	options = slices.Concat([]rlock.Option{rlock.Wait(0)}, options)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, hasRun := key(r), false
		err := locks.Run(r.Context(), name, func(ctx context.Context, hold *rlock.Hold) error {
			hasRun = true
			next.ServeHTTP(w, r.WithContext(context.WithValue(ctx, held{}, hold)))
			return nil
		}, options...)
		if err == nil {
			return
		}
		if hasRun {
			slog.Warn("rlockhttp: a request did not hold its lock until its end", "key", name, "error", err)
			return
		}
		status := http.StatusInternalServerError
		failure := (*rlock.Error)(nil)
		switch is := errors.As(err, &failure); {
		case is && errors.Is(err, rlock.ErrNotAcquired):
			status = http.StatusConflict
		case is && failure.Transient, r.Context().Err() != nil:
			status = http.StatusServiceUnavailable
		default:
			slog.Error("rlockhttp: a request failed without its lock", "key", name, "error", err)
		}
		http.Error(w, http.StatusText(status), status)
	})
}

// Hold returns the hold under which Handler runs a request, from the request's context; nil without one. Send its Fence with
// each write.
func Hold(ctx context.Context) *rlock.Hold {
	hold, _ := ctx.Value(held{}).(*rlock.Hold)
	return hold
}
