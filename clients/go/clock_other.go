//go:build !linux

package rlock

import "time"

// now is by Go's clock, which stalls on most systems while the machine is suspended.
func now() time.Duration { return time.Since(began) }
