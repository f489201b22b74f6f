// Package machine says what engines have in common.
package machine

// Machine is the engine of one client: WebAssembly that wasm2go has translated to Go. docs/embedding.md describes its functions.
type Machine interface {
	Xrlock_version() int32
	Xrlock_input(length int32) (pointer int32)
	Xrlock_open() (length int32)
	Xrlock_handle(now int64) (length int32)
	Xrlock_output() (pointer int32)
	Xrlock_remaining(guard, now int64) int64
	// Slice returns its memory. A call may replace it.
	Slice() *[]byte
}

// NewQuorum creates a *rlock.Client of several servers with a machine for quorums. The options are rlock.Options. Package
// rlock sets it, so that package quorum has the same host, and the users of both do not see it.
var NewQuorum func(made Machine, urls []string, anyGrace bool, options any) (client any, err error)
