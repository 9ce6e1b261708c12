package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"sync"
)

// pool is a fixed number of connections that keep their prepared statements: to
// prepare one costs more than to run it.
type pool struct {
	*sql.DB               // opens the connections
	slots   chan struct{} // one for each connection in use
	mu      sync.Mutex
	idle    []*conn
	closed  bool
}

// conn is one connection and its statements by text.
type conn struct {
	*sql.Conn
	stmts map[string]*sql.Stmt
}

func newPool(path string, conns int) (*pool, error) {
	db, err := sql.Open("sqlite", dsn(path))
	if err != nil {
		return nil, err
	}
	db.SetMaxIdleConns(-1) // what is given back to it is closed: the idle ones are kept here
	return &pool{DB: db, slots: make(chan struct{}, conns)}, nil
}

var errClosed = errors.New("the store is closed")

// get waits for a connection; put gives it back.
func (p *pool) get(ctx context.Context) (*conn, error) {
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	p.mu.Lock()
	closed, last := p.closed, len(p.idle)-1
	var c *conn
	if last >= 0 {
		c, p.idle = p.idle[last], p.idle[:last]
	}
	p.mu.Unlock()
	if c != nil {
		return c, nil
	}
	err := errClosed
	if !closed {
		var sc *sql.Conn
		if sc, err = p.Conn(ctx); err == nil {
			return &conn{Conn: sc, stmts: map[string]*sql.Stmt{}}, nil
		}
	}
	<-p.slots
	return nil, err
}

// put takes a connection back. One that is not known to be clean is closed.
func (p *pool) put(c *conn, clean bool) {
	p.mu.Lock()
	keep := clean && !p.closed
	if keep {
		p.idle = append(p.idle, c)
	}
	p.mu.Unlock()
	if !keep {
		_ = c.close() // nothing was asked of it any more
	}
	<-p.slots
}

// pause waits until no connection is in use, and keeps them so until resume.
func (p *pool) pause(ctx context.Context) (resume func(), ok bool) {
	taken := 0
	resume = func() {
		for range taken {
			<-p.slots
		}
	}
	for taken < cap(p.slots) {
		select {
		case p.slots <- struct{}{}:
			taken++
		case <-ctx.Done():
			resume()
			return nil, false
		}
	}
	return resume, true
}

// Close ends the idle connections now and the others when they come back.
func (p *pool) Close() error {
	p.mu.Lock()
	idle := p.idle
	p.idle, p.closed = nil, true
	p.mu.Unlock()
	var errs []error
	for _, c := range idle {
		errs = append(errs, c.close())
	}
	return errors.Join(append(errs, p.DB.Close())...)
}

// close ends the connection. An open transaction is rolled back by it.
func (c *conn) close() error {
	var errs []error
	for _, st := range c.stmts {
		errs = append(errs, st.Close())
	}
	return errors.Join(append(errs, c.Conn.Close())...)
}

// prepared is the statement of that text.
func (c *conn) prepared(ctx context.Context, query string) (*sql.Stmt, error) {
	if st := c.stmts[query]; st != nil {
		return st, nil
	}
	st, err := c.PrepareContext(ctx, query)
	if err == nil {
		c.stmts[query] = st
	}
	return st, err
}
