// Package program runs engines, which are WebAssembly.
package program

import (
	"context"
	"fmt"
	"sync"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

// NewQuorum creates a *rlock.Client of several servers with an engine for quorums. The options are rlock.Options. Package
// rlock sets it, so that package quorum has the same host, and the users of both do not see it.
var NewQuorum func(engine *Program, urls []string, anyGrace bool, options any) (client any, err error)

// Program is the code of an engine. It is compiled once for the process, for the first client.
type Program struct {
	name     string
	compiled func() (build, error)
}

type build func() (api.Module, error)

// New takes the WebAssembly of a file. It compiles nothing yet.
func New(name string, code []byte) *Program {
	return &Program{name, sync.OnceValues(func() (build, error) { return compile(code) })}
}

func compile(code []byte) (build, error) {
	ctx := context.Background()
	runtime := wazero.NewRuntime(ctx)
	module, err := runtime.CompileModule(ctx, code)
	if err != nil {
		return nil, err
	}
	return func() (api.Module, error) {
		return runtime.InstantiateModule(ctx, module, wazero.NewModuleConfig().WithName(""))
	}, nil
}

// Instance returns a new instance for one client. It is small.
func (p *Program) Instance() (api.Module, error) {
	build, err := p.compiled()
	var module api.Module
	if err == nil {
		module, err = build()
	}
	if err != nil {
		return nil, fmt.Errorf("rlock: %s: %w", p.name, err)
	}
	return module, nil
}

// Name returns the name of the file.
func (p *Program) Name() string { return p.name }
