package rlock

import (
	"time"

	"golang.org/x/sys/unix"
)

// now reads a clock that also runs while the machine is suspended.
func now() time.Duration {
	var spec unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &spec) != nil {
		return time.Since(began)
	}
	return time.Duration(spec.Nano())
}
