package main

import (
	"context"
	"errors"
)

var rlockPeer = peer{
	Name: "rlock-go", Title: "rlock, clients/go", Waits: "server queue",
	Settings: "",
	module:   "",
	open: func(_ context.Context, w workload) (func() (caller, error), error) {
		return nil, errors.New("not yet")
	},
}
