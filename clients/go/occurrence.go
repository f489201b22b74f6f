package rlock

import (
	"fmt"
	"log/slog"
	"math"
	"runtime/debug"
	"time"
)

// Occurrence is something that has happened to the locks or connections of a client. docs/telemetry.md lists the kinds and
// outcomes.
type Occurrence struct {
	// Kind is what it is, such as "wait" or "at_risk".
	Kind string
	// Outcome is how a wait or a hold has ended: "granted", "released", or the code of an error. Otherwise it is empty.
	Outcome string
	// Duration is how long it took. For "at_risk", it is the time that is left.
	Duration time.Duration
	// Keys are those that it concerns; none for connections. They may be secret, so neither String nor JSON has them.
	Keys []string `json:"-"`
	// Text is the address of a server, or its error.
	Text string
}

// String has everything but the keys.
func (o Occurrence) String() string {
	return fmt.Sprintf("{Kind:%s Outcome:%s Duration:%v Text:%s}", o.Kind, o.Outcome, o.Duration, o.Text)
}

// GoString is String.
func (o Occurrence) GoString() string { return o.String() }

// occurred adds the callbacks for an occurrence. The caller holds the lock.
func (c *Client) occurred(a action) {
	it := Occurrence{a.what, a.outcome, time.Duration(min(a.nanoseconds, math.MaxInt64)), a.keys, a.text}
	if listener := c.options.Listener; listener != nil {
		c.callbacks = append(c.callbacks, func() { c.try("Listener", func() { listener(it) }) })
	}
	if hold := c.holds[a.guard]; it.Kind == "at_risk" && hold != nil && hold.onRisk != nil {
		c.callbacks = append(c.callbacks, func() { c.try("OnRisk", func() { hold.onRisk(it.Duration) }) })
	}
}

// try calls a function of the user. If it panics, nothing else changes.
func (c *Client) try(name string, function func()) {
	defer func() {
		if reason := recover(); reason != nil {
			c.log(slog.LevelError, fmt.Sprintf("the function of %s has panicked: %v\n%s", name, reason, debug.Stack()))
		}
	}()
	function()
}
