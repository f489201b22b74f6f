// Code generated from crates/rlock-embed/src/messages.rs by `RLOCK_GENERATE=1 cargo test --package rlock-embed --test generated`; DO NOT EDIT.

package rlock

import "fmt"

const formVersion = 3

const acConnect = 1
const acWrite = 2
const acClose = 3
const acGranted = 4
const acRefused = 5
const acDone = 6
const acFailed = 7
const acAnswered = 8
const acOver = 9
const acNote = 10
const acLeader = 11
const acOccurred = 12

const owningNew = 0
const owningActivity = 1
const owningNamed = 2

const accessExclusive = 0
const accessShared = 1
const accessPermits = 2

const faultIo = 0
const faultTime = 1
const faultSetup = 2
const faultCertificate = 3

const transportTcp = 0
const transportTls = 1
const transportInsecure = 2
const transportUnix = 3

const endingLeaseEnded = 0
const endingEndedByServer = 1
const endingReleased = 2

const levelDebug = 0
const levelInformation = 1
const levelWarning = 2

const togetherSingle = 0
const togetherQuorum = 1
const togetherAnyGrace = 2

type ownerForm struct {
	owner    uint8
	activity uint64
	name     string
}

type modeForm struct {
	mode    uint8
	permits uint32
	limit   uint32
}

type wantedForm struct {
	owner ownerForm
	keys  []string
	mode  modeForm
}

type termsForm struct {
	lease    uint64
	renewed  bool
	maxHold  uint64
	bound    uint64
	replicas uint16
	margin   uint64
}

type leaderForm struct {
	fence    uint64
	value    string
	owner    string
	timeLeft uint64
}

func (w *writer) ownerForm(it ownerForm) *writer {
	return w.u8(it.owner).u64(it.activity).text(it.name)
}

func (w *writer) modeForm(it modeForm) *writer {
	return w.u8(it.mode).u32(it.permits).u32(it.limit)
}

func (w *writer) wantedForm(it wantedForm) *writer {
	return w.ownerForm(it.owner).list(it.keys).modeForm(it.mode)
}

func (w *writer) termsForm(it termsForm) *writer {
	return w.u64(it.lease).flag(it.renewed).u64(it.maxHold).u64(it.bound).u16(it.replicas).u64(it.margin)
}

func (w *writer) configuration(version uint32, urls []string, together uint8, name string, library string, libraryVersion string, response uint64, retry uint64, replication uint64, listens bool, seed []byte) {
	w.u32(version).list(urls).u8(together).text(name).text(library).text(libraryVersion).u64(response).u64(retry).u64(replication).flag(listens).raw(seed)
}

func (w *writer) connect(call uint64) {
	w.u8(1).u64(call)
}

func (w *writer) lock(call uint64, wanted wantedForm, wait uint64, terms termsForm) {
	w.u8(2).u64(call).wantedForm(wanted).u64(wait).termsForm(terms)
}

func (w *writer) release(call uint64, guard uint64, least uint64) {
	w.u8(3).u64(call).u64(guard).u64(least)
}

func (w *writer) upgrade(call uint64, guard uint64, wait uint64) {
	w.u8(4).u64(call).u64(guard).u64(wait)
}

func (w *writer) extend(call uint64, guard uint64, lease uint64) {
	w.u8(5).u64(call).u64(guard).u64(lease)
}

func (w *writer) downgrade(call uint64, guard uint64) {
	w.u8(6).u64(call).u64(guard)
}

func (w *writer) question(call uint64, key string, words []string, changes bool, limit uint64) {
	w.u8(7).u64(call).text(key).list(words).flag(changes).u64(limit)
}

func (w *writer) abandon(call uint64) {
	w.u8(8).u64(call)
}

func (w *writer) metrics(call uint64) {
	w.u8(9).u64(call)
}

func (w *writer) opened(connection uint64) {
	w.u8(10).u64(connection)
}

func (w *writer) received(connection uint64, bytes []byte) {
	w.u8(11).u64(connection).bytes(bytes)
}

func (w *writer) ended(connection uint64, failure uint8, text string) {
	w.u8(12).u64(connection).u8(failure).text(text)
}

func (w *writer) flush(call uint64) {
	w.u8(13).u64(call)
}

func (w *writer) leaveAll() {
	w.u8(14)
}

func (w *writer) closed() {
	w.u8(15)
}

func (w *writer) tick() {
	w.u8(16)
}

func (w *writer) leave(guard uint64) {
	w.u8(17).u64(guard)
}

func (w *writer) untaken(guard uint64) {
	w.u8(18).u64(guard)
}

func (w *writer) campaign(call uint64, wanted wantedForm, wait uint64, terms termsForm, value string) {
	w.u8(19).u64(call).wantedForm(wanted).u64(wait).termsForm(terms).text(value)
}

func (w *writer) proclaim(call uint64, guard uint64, value string) {
	w.u8(20).u64(call).u64(guard).text(value)
}

func (w *writer) observe(call uint64, key string) {
	w.u8(21).u64(call).text(key)
}

func (w *writer) leader(call uint64, key string) {
	w.u8(22).u64(call).text(key)
}

func (w *writer) releasePermits(call uint64, guard uint64, permits uint32) {
	w.u8(23).u64(call).u64(guard).u32(permits)
}

func (r *reader) leaderForm() *leaderForm {
	isThere, it := r.flag(), leaderForm{fence: r.u64(), value: r.text(), owner: r.text(), timeLeft: r.u64()}
	if !isThere {
		return nil
	}
	return &it
}

// action is an action in an output. Its bytes are a part of the output.
type action struct {
	connection  uint64
	host        string
	bytes       []byte
	call        uint64
	guard       uint64
	owner       string
	fences      map[string]uint64
	code        string
	text        string
	answers     any
	leader      *leaderForm
	what        string
	outcome     string
	nanoseconds uint64
	keys        []string
	kind        uint8
	how         uint8
	port        uint16
	transient   bool
	why         uint8
	level       uint8
	missed      bool
}

func (r *reader) action() action {
	a := action{kind: r.u8()}
	switch a.kind {
	case acConnect:
		a.connection, a.how, a.host, a.port = r.u64(), r.u8(), r.text(), r.u16()
	case acWrite:
		a.connection, a.bytes = r.u64(), r.bytes()
	case acClose:
		a.connection = r.u64()
	case acGranted:
		a.call, a.guard, a.owner, a.fences = r.u64(), r.u64(), r.text(), r.fences()
	case acRefused:
		a.call = r.u64()
	case acDone:
		a.call = r.u64()
	case acFailed:
		a.call, a.code, a.text, a.transient = r.u64(), r.text(), r.text(), r.flag()
	case acAnswered:
		a.call, a.answers = r.u64(), r.value()
	case acOver:
		a.guard, a.why = r.u64(), r.u8()
	case acNote:
		a.level, a.text = r.u8(), r.text()
	case acLeader:
		a.call, a.leader, a.missed = r.u64(), r.leaderForm(), r.flag()
	case acOccurred:
		a.guard, a.what, a.outcome, a.nanoseconds, a.keys, a.text = r.u64(), r.text(), r.text(), r.u64(), r.list(), r.text()
	default:
		panic(fmt.Sprintf("rlock: unknown action %d", a.kind))
	}
	return a
}
