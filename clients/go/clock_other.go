//go:build !linux

package rlock

import "time"

// now reads Go's clock, which on most systems stops while the machine is suspended.
func now() time.Duration { return time.Since(began) }
