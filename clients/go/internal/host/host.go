// Package host is what package quorum uses of package rlock, and its users do not see.
package host

// NewQuorum creates a *rlock.Client of several servers. The options are rlock.Options. Package rlock sets it.
var NewQuorum func(urls []string, anyGrace bool, options any) (client any, err error)
