package main

import (
	"context"
	"errors"
)

var rlockPeer = peer{
	Name: "rlock-go", Title: "rlock", Waits: "blocked, in a queue in the server",
	Settings: "",
	module:   "",
	open: func(_ context.Context, w workload) (func() (caller, error), error) {
		return nil, errors.New("not yet")
	},
}
