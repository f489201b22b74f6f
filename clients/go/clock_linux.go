package rlock

import (
	"time"

	"golang.org/x/sys/unix"
)

// now is by a clock that goes on while the machine is suspended.
func now() time.Duration {
	var spec unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &spec) != nil {
		return time.Since(began)
	}
	return time.Duration(spec.Nano())
}
