package rlock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"rlock/internal/host"
)

var (
	began  = time.Now()
	closed = &Error{Code: "Closed", Message: "the client has been closed"}
)

// Client takes locks of one server, of a master that Sentinels name, or of a cluster; package quorum takes those of several
// independent servers. It has one connection to each server, for any number of locks and waits. Two goroutines serve each
// connection; holds and waits need none. It is safe for concurrent use.
type Client struct {
	options Options

	mu          sync.Mutex // Guards everything below, so only one goroutine uses the engine.
	engine      *engine
	connections map[uint64]*connection
	calls       map[uint64]*call
	holds       map[uint64]*Hold
	last        uint64 // The number of the last call.
	timer       *time.Timer
	due         uint64
	closing     *closing // What all calls to Close wait for; nil before the first.
	isEnding    bool     // Connections that the engine disconnects still have something to write.
	isClosed    bool
	callbacks   []func()      // The next calls of the logger and of the user's functions.
	calling     chan struct{} // Closed when the goroutine that makes these calls has finished; nil without one.
}

// call is a call that a goroutine waits for.
type call struct {
	number uint64
	done   chan action // Has room for one action.
	hold   *Hold       // The hold of a lock call or of an upgrade.
	// The changes of an observer.
	changes *changes
}

// Options of a client. For a time, zero is the default.
type Options struct {
	// Name begins the names of connections and owners, for people who inspect the server: 1 to 64 bytes without spaces.
	// Default: none.
	Name string
	// ResponseTimeout is how long the server may take for one reply. Default 5 s.
	ResponseTimeout time.Duration
	// RetryTimeout is how long calls that do not wait for a lock are retried while servers are unreachable. Default 10 s.
	RetryTimeout time.Duration
	// ReplicationTimeout is how long replicas may take to acknowledge a grant; see Replicas. Default 1 s.
	ReplicationTimeout time.Duration
	// TLS is for rediss://. Default: the system's root certificates. If one of its functions panics, this attempt to connect
	// fails, and the panic is logged.
	TLS *tls.Config
	// Dial opens connections, for example through a tunnel. Default: DialContext of net.Dialer. If it panics, this attempt to
	// connect fails, and the panic is logged. If its connections have no method CloseWrite, which net.TCPConn has, Close
	// with an ended context always takes a second.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Logger logs the events of connections. Without it, the client logs only warnings, with slog.Default. The first failure
	// of an outage is a warning.
	Logger *slog.Logger
	// Listener is called for each wait and each hold that has ended, and for what happens to renewals and connections: see
	// docs/telemetry.md. The calls have the order of the occurrences, and do not overlap. A goroutine of the client makes them:
	// what waits for it takes memory, so it must be quick. It may call the client, but not Close. A panic is logged.
	Listener func(Occurrence)
}

// NewClient creates a client, which connects at its first call. The URL begins with redis://, rediss://, redis+unix://,
// redis+sentinel://, rediss+sentinel://, redis+cluster:// or rediss+cluster://. Every error is an ErrOutOfRange.
func NewClient(url string, options Options) (*Client, error) {
	return newClient([]string{url}, togetherSingle, options)
}

func init() {
	host.NewQuorum = func(urls []string, anyGrace bool, options any) (any, error) {
		together := uint8(togetherQuorum)
		if anyGrace {
			together = togetherAnyGrace
		}
		return newClient(urls, together, options.(Options))
	}
}

func newClient(urls []string, together uint8, options Options) (*Client, error) {
	limits := [3]time.Duration{options.ResponseTimeout, options.RetryTimeout, options.ReplicationTimeout}
	for i, name := range []string{"ResponseTimeout", "RetryTimeout", "ReplicationTimeout"} {
		if limits[i] < 0 {
			return nil, outOfRange("%s is %v, it must not be below zero", name, limits[i])
		}
	}
	for i, url := range urls {
		switch {
		case utf8.ValidString(url):
		case together == togetherSingle:
			return nil, outOfRange("url must be UTF-8")
		default:
			return nil, outOfRange("members[%d] must be UTF-8", i)
		}
	}
	if !utf8.ValidString(options.Name) {
		return nil, outOfRange("Name is %q, it must be UTF-8", options.Name)
	}
	engine, err := newEngine(urls, together, options.Name, limits, options.Listener != nil)
	if err != nil {
		return nil, err
	}
	if options.Dial == nil {
		options.Dial = new(net.Dialer).DialContext
	}
	c := &Client{
		options: options, engine: engine, connections: map[uint64]*connection{}, calls: map[uint64]*call{},
		holds: map[uint64]*Hold{}, due: none,
	}
	c.timer = time.AfterFunc(time.Hour, func() {
		c.mu.Lock()
		c.due = none
		c.event().tick()
		c.handle()
	})
	return c, nil
}

// event writes an event, which c.handle passes to the engine. The caller holds the lock.
func (c *Client) event() *writer { return &c.engine.event }

// handle passes the written event to the engine, and carries out the actions. It releases the lock.
func (c *Client) handle() {
	c.step()
	c.callBack()
	c.mu.Unlock()
}

// callBack lets a goroutine make the callbacks in their order, unless one does. It is no goroutine of a caller, who may hold
// what a listener waits for, and none of a connection, whose replies a listener may wait for. The caller holds the lock.
func (c *Client) callBack() {
	if c.calling != nil || len(c.callbacks) == 0 {
		return
	}
	calling := make(chan struct{})
	c.calling = calling
	go func() {
		c.mu.Lock()
		defer func() { // Even if a callback ends its goroutine.
			c.calling = nil
			c.callBack()
			c.mu.Unlock()
			close(calling)
		}()
		for len(c.callbacks) > 0 {
			next := c.callbacks[0]
			c.callbacks[0] = nil // The array may live long.
			c.callbacks = c.callbacks[1:]
			c.withoutLock(next)
		}
	}()
}

func (c *Client) withoutLock(work func()) {
	c.mu.Unlock()
	defer c.mu.Lock()
	work()
}

var levels = [...]slog.Level{levelDebug: slog.LevelDebug, levelInformation: slog.LevelInfo, levelWarning: slog.LevelWarn}

func (c *Client) log(level slog.Level, text string) {
	logger := c.options.Logger
	if logger == nil && level < slog.LevelWarn {
		return
	}
	if logger == nil {
		logger = slog.Default()
	}
	// If a handler panics, only this line is lost.
	defer func() { _ = recover() }()
	logger.Log(context.Background(), level, "rlock: "+text)
}

func (c *Client) step() {
	if c.isClosed {
		c.engine.event = c.engine.event[:0]
		return
	}
	output := c.engine.handleEvent(now())
	deadline := output.u64()
	var reports []action
	for len(output) > 0 {
		switch a := output.action(); a.kind {
		case acConnect:
			c.connect(a)
		case acWrite:
			c.connections[a.connection].write(a.bytes)
		case acClose:
			if !c.isEnding {
				c.connections[a.connection].end()
			}
			delete(c.connections, a.connection)
		case acNote:
			level, text := levels[a.level], a.text
			c.callbacks = append(c.callbacks, func() { c.log(level, text) })
		default:
			reports = append(reports, a)
		}
	}
	if deadline != c.due {
		c.due = deadline
		c.timer.Reset(time.Duration(min(deadline, uint64(now())+uint64(time.Hour))) - now())
	}
	for _, a := range reports {
		c.report(a)
	}
}

func (c *Client) report(a action) {
	if a.kind == acOccurred {
		c.occurred(a)
		return
	}
	if a.kind == acOver {
		if hold := c.holds[a.guard]; hold != nil {
			lost := hold.lost(losses[a.why])
			if a.why == endingReleased {
				lost = closed
			}
			hold.cancel(lost)
		}
		return
	}
	call := c.calls[a.call]
	if call != nil && call.changes != nil && a.kind == acLeader {
		change := Change{Missed: a.missed}
		if a.leader != nil {
			change.Leader = &Proclaimed{a.leader.fence, a.leader.value}
		}
		call.changes.add(change)
		return
	}
	delete(c.calls, a.call)
	switch {
	case a.kind != acGranted:
		if call != nil {
			call.done <- a
		}
	case call == nil:
		c.event().untaken(a.guard)
		c.step()
	default:
		if hold := call.hold; hold.number == 0 {
			hold.number, hold.owner = a.guard, a.owner
			c.holds[a.guard] = hold
		}
		call.hold.fences = a.fences
		call.done <- a
	}
}

// begin numbers a call. Without an error, it leaves the lock held: the caller writes the event, then calls wait.
func (c *Client) begin(hold *Hold) (*call, *writer, error) {
	c.mu.Lock()
	return c.beginLocked(hold)
}

// beginLocked is begin for a caller that holds the lock. An error releases it.
func (c *Client) beginLocked(hold *Hold) (*call, *writer, error) {
	if c.isClosed {
		c.mu.Unlock()
		return nil, nil, closed
	}
	c.last++
	begun := &call{number: c.last, done: make(chan action, 1), hold: hold}
	c.calls[begun.number] = begun
	return begun, c.event(), nil
}

// wait passes the event to the engine, and waits for the end of the call. If the context ends first, it abandons the call.
func (c *Client) wait(ctx context.Context, call *call) (action, error) {
	c.handle()
	var ended action
	select {
	case ended = <-call.done:
	case <-ctx.Done():
		if c.abandon(call) {
			return action{}, context.Cause(ctx)
		}
		ended = <-call.done
	}
	if ended.kind == acFailed {
		return action{}, &Error{Code: ended.code, Message: ended.text, Transient: ended.transient}
	}
	return ended, nil
}

// abandon ends a call that nobody waits for any more; false if it has already ended.
func (c *Client) abandon(call *call) bool {
	c.mu.Lock()
	if c.calls[call.number] == nil {
		c.mu.Unlock()
		return false
	}
	delete(c.calls, call.number)
	c.event().abandon(call.number)
	c.handle()
	return true
}

// Connect connects now, and returns an error if that fails. Without it, the first call connects.
func (c *Client) Connect(ctx context.Context) error {
	require(ctx)
	call, event, err := c.begin(nil)
	if err != nil {
		return err
	}
	event.connect(call.number)
	_, err = c.wait(ctx, call)
	return err
}

// Metrics are the counters of a client.
type Metrics struct{ Grants, Waits, Losses, LateRenewals, Reconnects int64 }

// Metrics returns the counters of this client.
func (c *Client) Metrics() (Metrics, error) {
	call, event, err := c.begin(nil)
	if err != nil {
		return Metrics{}, err
	}
	event.metrics(call.number)
	answer, err := c.wait(context.Background(), call)
	if err != nil {
		return Metrics{}, err
	}
	count := func(index int) int64 { return answer.answers.([]any)[index].(int64) }
	return Metrics{count(0), count(1), count(2), count(3), count(4)}, nil
}

// Info returns the fields of RLOCK.INFO for a lock.
func (c *Client) Info(ctx context.Context, key string) (map[string]any, error) {
	answer, err := c.ask(ctx, key, false, "RLOCK.INFO")
	info, _ := answer.(map[string]any)
	return info, err
}

// Force ends every hold of a lock, and returns their number.
func (c *Client) Force(ctx context.Context, key string) (int64, error) {
	answer, err := c.ask(ctx, key, true, "RLOCK.FORCE")
	count, _ := answer.(int64)
	return count, err
}

// ForceFence ends the hold of a lock with this fence, and returns the number of holds ended. With the fence from Info it
// never ends a later hold. It returns ErrOutOfRange unless the fence is from 1 to 9007199254740991.
func (c *Client) ForceFence(ctx context.Context, key string, fence uint64) (int64, error) {
	require(ctx)
	if fence < 1 || fence > fenceMax {
		return 0, outOfRange("fence is %d, it must be from 1 to %d", fence, fenceMax)
	}
	answer, err := c.ask(ctx, key, true, "RLOCK.FORCE", "FENCE", strconv.FormatUint(fence, 10))
	count, _ := answer.(int64)
	return count, err
}

// fenceMax is the largest fence that any lock has.
const fenceMax uint64 = 1<<53 - 1

func (c *Client) ask(ctx context.Context, key string, changes bool, command string, options ...string) (any, error) {
	require(ctx)
	call, event, err := c.begin(nil)
	if err != nil {
		return nil, err
	}
	event.question(call.number, key, append([]string{command, key}, options...), changes, none)
	answered, err := c.wait(ctx, call)
	if err != nil {
		return nil, err
	}
	answer := answered.answers.([]any)[0]
	if refused, is := answer.(error); is {
		return nil, &Error{Code: "Refused", Message: refused.Error()}
	}
	return answer, nil
}

// Close ends all waits with ErrClosed, releases all holds, and closes the connections. It waits for the servers until the
// context ends, and then returns its cause. If the server refuses to release some of them, it returns ErrNotReleased: they
// become free when their leases end. After the end of the context, which may be before the call, it waits for at most a second
// until the servers have taken the releases. It also waits for the listener, for at most a second after the end of the context.
//
// A further call waits for the first one and returns its error. If its own context ends meanwhile, neither waits any longer
// for the servers.
func (c *Client) Close(ctx context.Context) error {
	require(ctx)
	ctx, stop := withoutHolds(ctx) // Not under the lock: a context may look at a hold.
	defer stop()
	ctx, hurry := context.WithCancelCause(ctx)
	defer hurry(nil)
	c.mu.Lock()
	if first := c.closing; first != nil {
		c.mu.Unlock()
		defer context.AfterFunc(ctx, func() { first.hurry(context.Cause(ctx)) })()
		<-first.ended
		return first.err
	}
	c.closing = &closing{hurry: hurry, ended: make(chan struct{})}
	defer close(c.closing.ended)
	c.closing.err = c.close(ctx)
	return c.closing.err
}

// closing is the first call to Close.
type closing struct {
	hurry context.CancelCauseFunc // Ends the wait for the servers.
	ended chan struct{}           // Closed when the call has ended.
	err   error                   // The result of the call when it has ended.
}

// close is the first call to Close. It releases the lock.
func (c *Client) close(ctx context.Context) error {
	for _, hold := range c.holds {
		hold.end(closed)
	}
	c.event().leaveAll()
	c.step()
	flush, event, _ := c.beginLocked(nil)
	event.flush(flush.number)
	_, err := c.wait(ctx, flush)
	c.mu.Lock()
	connections := maps.Clone(c.connections)
	c.isEnding = true
	c.event().closed()
	c.step()
	c.isClosed = true
	c.timer.Stop()
	for _, connection := range connections {
		if err == nil { // All is answered.
			connection.end()
		} else {
			connection.endOutput()
		}
	}
	for _, call := range c.calls {
		call.done <- action{kind: acFailed, code: closed.Code, text: closed.Message}
	}
	c.connections, c.calls, c.holds = nil, nil, nil
	c.callBack()
	calling := c.calling
	c.mu.Unlock()
	// The waits share this time if the context has ended.
	limit := time.After(closeTimeout)
	if calling != nil {
		select {
		case <-calling:
		case <-ctx.Done():
			select {
			case <-calling:
			case <-time.After(closeTimeout):
			}
		}
	}
	for _, connection := range connections {
		select {
		case <-connection.ended:
			continue
		case <-limit:
		}
		break
	}
	return err
}

// connection is a connection to a server. It buffers the output, so that no caller waits for a socket.
type connection struct {
	client *Client
	number uint64
	cancel context.CancelFunc
	wake   chan struct{} // Has room for one signal.
	ended  chan struct{} // Is closed when the socket is.
	mu     sync.Mutex
	output []byte
	spare  []byte
	isLast bool // The output ends when all of it is written.
}

// closeTimeout is how long a client that closes waits until the servers have taken its last output, and for the listener after
// the end of the context.
const closeTimeout = time.Second

func (c *Client) connect(a action) {
	ctx, cancel := context.WithCancel(context.Background())
	made := &connection{client: c, number: a.connection, cancel: cancel, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	c.connections[a.connection] = made
	go made.run(ctx, a)
}

// end closes the connection, or stops opening it. The server may drop what it has not answered. Unless the client is closed,
// the engine asks for that again.
func (n *connection) end() {
	if n != nil {
		n.cancel()
	}
}

// endOutput ends the output when all of it is written. The connection ends when the server closes it, or after closeTimeout.
func (n *connection) endOutput() {
	time.AfterFunc(closeTimeout, n.cancel)
	n.mu.Lock()
	n.isLast = true
	n.mu.Unlock()
	n.wakeUp()
}

func (n *connection) write(bytes []byte) {
	if n == nil {
		return
	}
	n.mu.Lock()
	n.output = append(n.output, bytes...)
	n.mu.Unlock()
	n.wakeUp()
}

func (n *connection) wakeUp() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// notify passes an event of the connection to the engine, unless the engine has closed the connection.
func (n *connection) notify(isLast bool, write func(*writer)) {
	c := n.client
	c.mu.Lock()
	if c.connections[n.number] != n {
		c.mu.Unlock()
		return
	}
	if isLast {
		delete(c.connections, n.number)
	}
	write(c.event())
	c.handle()
}

func (n *connection) run(ctx context.Context, a action) {
	defer close(n.ended)
	defer n.cancel()
	socket, address, err := n.dial(ctx, a)
	if err == nil {
		context.AfterFunc(ctx, func() { socket.Close() })
		n.notify(false, func(event *writer) { event.opened(n.number) })
		go n.flush(ctx, socket)
		buffer := make([]byte, 16<<10)
		for err == nil {
			var count int
			if count, err = socket.Read(buffer); count > 0 {
				n.notify(false, func(event *writer) { event.received(n.number, buffer[:count]) })
			}
		}
	}
	failure := uint8(faultIo)
	if refused := (*tls.CertificateVerificationError)(nil); errors.As(err, &refused) {
		failure = faultCertificate
	}
	// The text may have bytes of a peer.
	text := strings.ToValidUTF8(fmt.Sprintf("%s: %v", address, err), "\uFFFD")
	n.notify(true, func(event *writer) { event.ended(n.number, failure, text) })
}

func (n *connection) dial(ctx context.Context, a action) (socket net.Conn, address string, err error) {
	network, address := "tcp", net.JoinHostPort(a.host, strconv.Itoa(int(a.port)))
	if a.how == transportUnix {
		network, address = "unix", a.host
	}
	err = n.attempt("Dial", func() (err error) {
		socket, err = n.client.options.Dial(ctx, network, address)
		return err
	})
	// A method of a nil pointer in it would end the process.
	if value := reflect.ValueOf(socket); err == nil && (socket == nil || value.Kind() == reflect.Pointer && value.IsNil()) {
		err = errors.New("Dial has returned no connection")
	}
	if err != nil || a.how == transportTcp || a.how == transportUnix {
		return socket, address, err
	}
	config := n.client.options.TLS.Clone()
	if config == nil {
		config = &tls.Config{}
	}
	if config.ServerName == "" {
		config.ServerName = a.host
	}
	config.InsecureSkipVerify = config.InsecureSkipVerify || a.how == transportInsecure
	secure := tls.Client(socket, config)
	if err = n.attempt("TLS", func() error { return secure.HandshakeContext(ctx) }); err != nil {
		socket.Close()
		return nil, address, err
	}
	return secure, address, nil
}

// attempt calls what may call a function of the user. If that panics, only this attempt to connect fails.
func (n *connection) attempt(name string, function func() error) error {
	err := fmt.Errorf("the function of %s has panicked", name)
	n.client.try(name, func() { err = function() })
	return err
}

// flush writes the buffered output until the connection ends. After an error it closes the socket, which the reader notices.
func (n *connection) flush(ctx context.Context, socket net.Conn) {
	for {
		n.mu.Lock()
		output := n.output
		n.output, n.spare = n.spare[:0], nil
		n.mu.Unlock()
		if len(output) > 0 {
			if _, err := socket.Write(output); err != nil {
				socket.Close()
				return
			}
		}
		n.mu.Lock()
		n.spare = output
		isMore, isLast := len(n.output) > 0, n.isLast
		n.mu.Unlock()
		if isMore {
			continue
		}
		if isLast {
			// A server reads a part at a time. It would drop the rest when its answer meets a closed socket, so run still
			// reads. A socket that cannot end its output alone stays open until closeTimeout.
			if half, can := socket.(interface{ CloseWrite() error }); can && half.CloseWrite() != nil {
				n.cancel()
			}
			return
		}
		select {
		case <-n.wake:
		case <-ctx.Done():
			return
		}
	}
}
