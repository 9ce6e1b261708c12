// Package faultproxy stands between a MySQL client and a real server and breaks their
// conversation where a test wants it broken: at chosen statements, or altogether.
//
//	p := faultproxy.Start(t, cfg.Addr)
//	cfg.Addr = p.Addr()
//	f := p.Inject(faultproxy.Rule{Contains: "COMMIT", Times: 1, When: faultproxy.After, Do: faultproxy.Cut})
//	...
//	f.Wait(1) // committed, and the client doesn't know
//
// Statements are what the client sends as COM_QUERY: with go-sql-driver, everything without
// parameters, and everything with interpolateParams=true. Prepared statements and other
// commands pass untouched and unseen. The proxy offers neither TLS nor compression nor LOAD
// DATA LOCAL. Only tests may import the package.
package faultproxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	dialTimeout = 10 * time.Second
	waitTimeout = 30 * time.Second

	// What Log shows: so many statements, so much of each.
	logStatements = 50
	logBytes      = 200

	// flushBytes of a response are delivered at once.
	flushBytes = 64 << 10
)

// Proxy is a running proxy. Its methods may be called from any goroutine, except for those
// that can fail the test.
type Proxy struct {
	tb       testing.TB
	listener net.Listener
	ctx      context.Context // ends with the proxy
	running  sync.WaitGroup

	mu      sync.Mutex
	backend string
	refuse  []byte        // payload of the ERR packet for new connections, or nil
	open    chan struct{} // closed unless there is a black hole
	conns   map[*conn]struct{}
	opened  int // connections so far
	faults  []*Fault
	seen    []statement // all of them: a test is short
}

type statement struct {
	conn int
	sql  string
}

// Start starts a proxy on a free port of the loopback interface. backend is the server's
// host and port. When the test ends, all connections are closed and all goroutines are over.
func Start(tb testing.TB, backend string) *Proxy {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("faultproxy: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Proxy{tb: tb, listener: listener, ctx: ctx, backend: backend, open: make(chan struct{}), conns: map[*conn]struct{}{}}
	close(p.open)
	p.running.Go(p.accept)
	tb.Cleanup(func() {
		cancel()
		_ = listener.Close() // accept sees the error, if there is one
		p.CutAll()
		p.running.Wait()
		if tb.Failed() {
			tb.Logf("faultproxy: last statements:\n%s", p.Log())
		}
	})
	return p
}

// Addr returns host and port for clients.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// SetBackend leads new connections to another server, as a failover does. Those that are
// there stay where they are; see CutAll.
func (p *Proxy) SetBackend(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.backend = addr
}

// Blackhole with true drops everything, as a firewall does: new connections are opened but get
// no greeting, and on those that are there nothing passes in either direction, not even that
// one side has closed: the server keeps the session of a client that has gone, with its
// locks. Blackhole(false) delivers what was sent meanwhile, as TCP's repetition does, and
// be it a statement that its client has long given up.
func (p *Proxy) Blackhole(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.open:
		if on {
			p.open = make(chan struct{})
		}
	default:
		if !on {
			close(p.open)
		}
	}
}

// RefuseNew answers new connections with an error in place of the greeting, as a server does
// that is full (1040), is shutting down (1053) or doesn't let the client in (1045).
// RefuseNew(0) lets them in again.
func (p *Proxy) RefuseNew(code uint16) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = nil
	if code != 0 {
		p.refuse = errPacket(code, "08004", "refused by faultproxy")
	}
}

// CutAll closes all connections, on both sides.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.close()
	}
}

// Count returns how many of the statements so far contain the text. They count as soon as
// they arrive at the proxy, whether or not the server gets them.
func (p *Proxy) Count(contains string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, s := range p.seen {
		if strings.Contains(s.sql, contains) {
			n++
		}
	}
	return n
}

// Log returns the last statements, cut short, a line for each with the number of its
// connection.
func (p *Proxy) Log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var b strings.Builder
	for _, s := range p.seen[max(0, len(p.seen)-logStatements):] {
		fmt.Fprintf(&b, "%d: %.*q\n", s.conn, logBytes, s.sql)
	}
	return b.String()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				p.tb.Errorf("faultproxy: %v", err)
			}
			return
		}
		p.mu.Lock()
		p.opened++
		c := &conn{p: p, id: p.opened, client: client, done: make(chan struct{}), exchanges: make(chan exchange, 1)}
		p.conns[c] = struct{}{}
		p.mu.Unlock()
		if p.ctx.Err() != nil {
			c.close() // CutAll may have come too early for it
		}
		p.running.Go(c.serve)
	}
}

// conn is one client's connection with the server's side of it.
type conn struct {
	p         *Proxy
	id        int
	client    net.Conn
	exchanges chan exchange // from fromClient to fromServer: what is to come
	held      sync.WaitGroup

	mu     sync.Mutex
	server net.Conn      // nil until dialled
	done   chan struct{} // closed by close
}

// exchange is a statement that was sent to the server.
type exchange struct {
	seq   byte   // of the response's first frame
	fault *Fault // that is still to happen, or nil
}

func (c *conn) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.done:
		return
	default:
	}
	close(c.done)
	_ = c.client.Close()
	if c.server != nil {
		_ = c.server.Close()
	}
}

// setServer returns false when the connection was closed meanwhile.
func (c *conn) setServer(server net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.done:
		_ = server.Close()
		return false
	default:
		c.server = server
		return true
	}
}

func (c *conn) serve() {
	defer func() {
		c.close()
		c.p.mu.Lock()
		delete(c.p.conns, c)
		c.p.mu.Unlock()
	}()
	if !c.pass() {
		return
	}
	c.p.mu.Lock()
	backend, refuse := c.p.backend, c.p.refuse
	c.p.mu.Unlock()
	if refuse != nil {
		c.write(c.client, appendPacket(nil, 0, refuse))
		return
	}
	d := net.Dialer{Timeout: dialTimeout}
	server, err := d.DialContext(c.p.ctx, "tcp", backend)
	if err != nil || !c.setServer(server) {
		return // the client sees its connection closed
	}
	var other sync.WaitGroup
	other.Go(c.fromServer)
	c.fromClient()
	other.Wait()
	c.held.Wait()
}

// pass waits while there is a black hole. It returns false when the connection was closed.
func (c *conn) pass() bool {
	c.p.mu.Lock()
	open := c.p.open
	c.p.mu.Unlock()
	select {
	case <-c.done:
		return false
	case <-open:
		return true
	}
}

func (c *conn) write(to net.Conn, b []byte) bool {
	if !c.pass() {
		return false
	}
	_, err := to.Write(b)
	return err == nil
}

// fromClient carries what the client sends, until either side is closed. It never waits for
// anything but the client and black holes, so it sees the client close while a statement is held.
func (c *conn) fromClient() {
	defer c.close()
	r := bufio.NewReader(c.client)
	for {
		q, err := readPacket(r)
		if !c.pass() || err != nil {
			return
		}
		// Commands begin with number 0, the packets of authentication never do.
		if q.seq == 0 && len(q.data) > 0 && q.data[0] == comQuery {
			if !c.query(q) {
				return
			}
		} else if !c.write(c.server, appendPacket(nil, q.seq, q.data)) {
			return
		}
	}
}

// query deals with a statement. It returns false when the connection is to be closed.
func (c *conn) query(q packet) bool {
	x := exchange{seq: q.next}
	f, end := c.p.match(c.id, string(q.data[1:]))
	switch {
	case f == nil:
	case f.rule.Do.do == doSplitError && end > 0:
		x.fault = f
		q.data = q.data[:1+end]
	case f.rule.Do.do == doSplitError, f.rule.When == Before:
		f.hit()
		switch f.rule.Do.do {
		case doCut:
			return false
		case doHang, doDelay:
			c.held.Go(func() {
				if !c.hold(f) || !c.forward(q, x) {
					c.close()
				}
			})
			return true
		default:
			return c.write(c.client, appendPacket(nil, x.seq, f.rule.Do.reply))
		}
	default:
		x.fault = f
	}
	return c.forward(q, x)
}

// forward sends the statement to the server, having told fromServer what to do about the
// response.
func (c *conn) forward(q packet, x exchange) bool {
	select {
	case c.exchanges <- x:
	case <-c.done:
		return false
	}
	return c.write(c.server, appendPacket(nil, q.seq, q.data))
}

// hold waits for the end of a Hang or Delay. It returns false when the connection was closed.
func (c *conn) hold(f *Fault) bool {
	var over <-chan time.Time
	if f.rule.Do.do == doDelay {
		t := time.NewTimer(f.rule.Do.delay)
		defer t.Stop()
		over = t.C
	}
	select {
	case <-c.done:
		return false
	case <-over:
	case <-f.released:
	}
	return true
}

// fromServer carries what the server sends, until either side is closed.
func (c *conn) fromServer() {
	defer c.close()
	r := bufio.NewReader(c.server)
	for greeted := false; ; greeted = true {
		f, err := readFrame(r)
		if !c.pass() || err != nil {
			return
		}
		if !greeted {
			hideCapabilities(f.data)
		}
		select {
		case x := <-c.exchanges:
			if !c.respond(r, f, x) {
				return
			}
		default: // greeting, authentication, other commands, the server's last words
			if !c.write(c.client, appendFrame(nil, f.seq, f.data)) {
				return
			}
		}
	}
}

// respond carries the response to a statement, whose first frame is f, and does what the
// statement's fault wants. It returns false when the connection is to be closed.
func (c *conn) respond(r *bufio.Reader, f frame, x exchange) bool {
	split := x.fault != nil && x.fault.rule.Do.do == doSplitError
	after := x.fault != nil && !split
	var resp response
	var out []byte
	// The numbers are counted anew: a statement that was split may have had fewer frames.
	seq := x.seq
	for {
		end, err := resp.next(f.data)
		if err != nil {
			c.p.tb.Errorf("faultproxy: connection %d: %v", c.id, err)
			return false
		}
		if split && resp.status != nil {
			resp.status[0] |= moreResults
		}
		out = appendFrame(out, seq, f.data)
		seq++
		if end {
			break
		}
		if !after && (r.Buffered() == 0 || len(out) >= flushBytes) {
			if !c.write(c.client, out) {
				return false
			}
			out = out[:0]
		}
		if f, err = readFrame(r); err != nil {
			c.pass() // the end is held back like everything else
			return false
		}
	}
	switch {
	case split && !resp.failed:
		x.fault.hit()
		out = appendPacket(out, seq, x.fault.rule.Do.reply)
	case after:
		x.fault.hit()
		switch x.fault.rule.Do.do {
		case doError:
			out = appendPacket(nil, x.seq, x.fault.rule.Do.reply)
		case doCut:
			return false
		default:
			if !c.hold(x.fault) {
				return false
			}
		}
	}
	return c.write(c.client, out)
}
