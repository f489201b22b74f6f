package rlock

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	translated "rlock/internal/engine"
)

const (
	none      = math.MaxUint64 // Instead of a time: no limit, or no time at all.
	malformed = math.MaxUint32
)

// engine makes the decisions of one client. Only one goroutine at a time may use it.
type engine struct {
	machine *translated.Module // WebAssembly that wasm2go has translated to Go. docs/embedding.md describes its functions.
	event   writer
}

func newEngine(urls []string, together uint8, name string, limits [3]time.Duration, listens bool) (*engine, error) {
	e := &engine{machine: translated.New()}
	if version := e.machine.Xrlock_version(); version != formVersion {
		return nil, fmt.Errorf("rlock: the engine is of version %d, it must be %d", version, formVersion)
	}
	var times [3]uint64
	for i, limit := range limits {
		times[i] = millisOr(limit, none)
	}
	seed := make([]byte, 32)
	rand.Read(seed)
	e.event.configuration(formVersion, urls, together, name, "rlock-go", Version, times[0], times[1], times[2], listens, seed)
	e.passInput()
	if wrong := e.machine.Xrlock_open(); wrong != 0 {
		return nil, &Error{Code: "OutOfRange", Message: string(e.result(wrong))}
	}
	return e, nil
}

func (e *engine) passInput() {
	at := uint32(e.machine.Xrlock_input(int32(len(e.event))))
	copy((*e.machine.Slice())[at:], e.event)
	e.event = e.event[:0]
}

// result is the output of the last call, which is valid until the next call.
func (e *engine) result(length int32) []byte {
	at := uint32(e.machine.Xrlock_output())
	return (*e.machine.Slice())[at:][:uint32(length)]
}

// handleEvent passes the event in e.event to the engine, and returns its output.
func (e *engine) handleEvent(now time.Duration) reader {
	kind := e.event[0]
	e.passInput()
	length := e.machine.Xrlock_handle(int64(now))
	if uint32(length) == malformed {
		panic(fmt.Sprintf("rlock: event %d is malformed", kind))
	}
	return e.result(length)
}

// remaining returns how long a guard is still valid.
func (e *engine) remaining(guard uint64) time.Duration {
	left := uint64(e.machine.Xrlock_remaining(int64(guard), int64(now())))
	return time.Duration(min(left, math.MaxInt64))
}

// writer encodes the fields of an event, one after the other.
type writer []byte

func (w *writer) u8(n uint8) *writer   { *w = append(*w, n); return w }
func (w *writer) u16(n uint16) *writer { *w = binary.LittleEndian.AppendUint16(*w, n); return w }
func (w *writer) u32(n uint32) *writer { *w = binary.LittleEndian.AppendUint32(*w, n); return w }
func (w *writer) u64(n uint64) *writer { *w = binary.LittleEndian.AppendUint64(*w, n); return w }

func (w *writer) flag(is bool) *writer {
	if is {
		return w.u8(1)
	}
	return w.u8(0)
}

func (w *writer) raw(b []byte) *writer   { *w = append(*w, b...); return w }
func (w *writer) bytes(b []byte) *writer { return w.u32(uint32(len(b))).raw(b) }

func (w *writer) text(s string) *writer {
	w.u32(uint32(len(s)))
	*w = append(*w, s...)
	return w
}

func (w *writer) list(items []string) *writer {
	w.u32(uint32(len(items)))
	for _, item := range items {
		w.text(item)
	}
	return w
}

// reader is the rest of an output.
type reader []byte

func (r *reader) take(count int) []byte {
	taken := (*r)[:count]
	*r = (*r)[count:]
	return taken
}

func (r *reader) u8() uint8   { return r.take(1)[0] }
func (r *reader) u16() uint16 { return binary.LittleEndian.Uint16(r.take(2)) }
func (r *reader) u32() uint32 { return binary.LittleEndian.Uint32(r.take(4)) }
func (r *reader) u64() uint64 { return binary.LittleEndian.Uint64(r.take(8)) }

func (r *reader) flag() bool { return r.u8() == 1 }

func (r *reader) bytes() []byte { return r.take(int(r.u32())) }
func (r *reader) text() string  { return string(r.bytes()) }

func (r *reader) list() []string {
	items := make([]string, r.u32())
	for at := range items {
		items[at] = r.text()
	}
	return items
}

func (r *reader) fences() map[string]uint64 {
	count := r.u32()
	fences := make(map[string]uint64, count)
	for range count {
		key := r.text()
		fences[key] = r.u64()
	}
	return fences
}

// value decodes a value in a server's answer.
func (r *reader) value() any {
	switch r.u8() {
	case 0:
		return nil
	case 1:
		return int64(r.u64())
	case 2:
		return r.text()
	case 3:
		list := make([]any, r.u32())
		for i := range list {
			list[i] = r.value()
		}
		return list
	case 4:
		table := map[string]any{}
		for range r.u32() {
			key := fmt.Sprint(r.value())
			table[key] = r.value()
		}
		return table
	default:
		return errors.New(r.text())
	}
}
