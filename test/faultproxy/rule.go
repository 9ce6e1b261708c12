package faultproxy

import (
	"strings"
	"time"
)

// When says at which moment a fault happens.
type When int

const (
	// Before is when the server has not got the statement.
	Before When = iota
	// After is when the server has executed the statement, and its whole response has arrived at
	// the proxy. The client has not got anything of it.
	After
)

// Action is what a fault does: one of Error, SplitError, Cut, Hang and Delay.
type Action struct {
	do    actionKind
	reply []byte // payload of the ERR packet
	n     int
	delay time.Duration
}

type actionKind int

const (
	doError actionKind = iota + 1
	doSplitError
	doCut
	doHang
	doDelay
)

var (
	// Cut closes the connection, on both sides.
	Cut = Action{do: doCut}
	// Hang answers nothing until the client closes the connection or the fault is released.
	// Then the statement goes on as if nothing had been: Before, it is executed now; After,
	// its response is delivered now.
	Hang = Action{do: doHang}
)

// Error answers with an error of the server instead of the response. An empty sqlstate
// stands for HY000; another has five characters.
func Error(code uint16, sqlstate, message string) Action {
	if sqlstate == "" {
		sqlstate = "HY000"
	}
	return Action{do: doError, reply: errPacket(code, sqlstate, message)}
}

// SplitError has the server execute the first n statements of the text and answers the one
// behind them, which the server never gets, with an error. A negative n leaves out the last
// -n: SplitError(-1, 1213, "40001", "deadlock") on "START TRANSACTION; ...; COMMIT" does
// everything but the COMMIT, and leaves the transaction open on the server. Texts without a
// statement at that place don't match the rule. When does not matter to it.
func SplitError(n int, code uint16, sqlstate, message string) Action {
	a := Error(code, sqlstate, message)
	a.do, a.n = doSplitError, n
	return a
}

// Delay holds the statement back, or its response, for d.
func Delay(d time.Duration) Action { return Action{do: doDelay, delay: d} }

// Rule says which statements a fault hits, and what it does to them. A statement is the
// whole text that the client sends at once, all of "START TRANSACTION; ...; COMMIT".
type Rule struct {
	// Contains and Match choose statements; those that are empty choose every one. Match
	// must not call the proxy.
	Contains string
	Match    func(sql string) bool
	// Nth is the first of the matching statements to be hit, counted from Inject. 0 is 1.
	Nth int
	// Times is how many statements in a row are hit. 0 is all until the fault is released.
	Times int
	When  When
	Do    Action
}

// Fault is a rule at work.
type Fault struct {
	p        *Proxy
	rule     Rule
	released chan struct{}

	// Under p.mu.
	matches int
	fired   int
	hits    int
	changed chan struct{} // closed and made anew at every hit
}

// Inject lets a rule work from now on, on old and new connections. A statement that several
// rules would hit is hit by the oldest of them, and all of them count it as a match.
func (p *Proxy) Inject(r Rule) *Fault {
	p.tb.Helper()
	if r.Do.do == 0 || r.Nth < 0 || r.Times < 0 {
		p.tb.Fatalf("faultproxy: bad rule %+v", r)
	}
	f := &Fault{p: p, rule: r, released: make(chan struct{}), changed: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, f)
	return f
}

// Clear releases all faults.
func (p *Proxy) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.faults {
		close(f.released)
	}
	p.faults = nil
}

// Release ends the fault: no further statement is hit, and those that are held back go on.
func (f *Fault) Release() {
	f.p.mu.Lock()
	defer f.p.mu.Unlock()
	for i, other := range f.p.faults {
		if other == f {
			f.p.faults = append(f.p.faults[:i:i], f.p.faults[i+1:]...)
			close(f.released)
		}
	}
}

// Hits returns how many statements the fault has hit. A hit counts from the moment that
// When names, and before the client sees anything of it.
func (f *Fault) Hits() int {
	f.p.mu.Lock()
	defer f.p.mu.Unlock()
	return f.hits
}

// Wait returns when the fault has n hits. It fails the test when that takes too long, and so
// belongs into the goroutine of the test.
func (f *Fault) Wait(n int) {
	f.p.tb.Helper()
	deadline := time.After(waitTimeout)
	for {
		f.p.mu.Lock()
		hits, changed := f.hits, f.changed
		f.p.mu.Unlock()
		if hits >= n {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			f.p.tb.Fatalf("faultproxy: %d hits within %s, want %d\n%s", hits, waitTimeout, n, f.p.Log())
		}
	}
}

// hit counts a hit.
func (f *Fault) hit() {
	f.p.mu.Lock()
	defer f.p.mu.Unlock()
	f.hits++
	close(f.changed)
	f.changed = make(chan struct{})
}

// match notes the statement and returns the fault that hits it, if any. For SplitError, end
// is where the part that the server gets ends.
func (p *Proxy) match(conn int, sql string) (hit *Fault, end int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = append(p.seen, statement{conn, sql})
	for _, f := range p.faults {
		at, ok := f.rule.matches(sql)
		if !ok {
			continue
		}
		f.matches++
		if hit == nil && f.matches >= f.rule.Nth && (f.rule.Times == 0 || f.fired < f.rule.Times) {
			f.fired++
			hit, end = f, at
		}
	}
	return hit, end
}

func (r *Rule) matches(sql string) (end int, ok bool) {
	if !strings.Contains(sql, r.Contains) || r.Match != nil && !r.Match(sql) {
		return 0, false
	}
	if r.Do.do != doSplitError {
		return 0, true
	}
	ends := statementEnds(sql)
	n := r.Do.n
	if n < 0 {
		n += len(ends)
	}
	switch {
	case n < 0 || n >= len(ends):
		return 0, false
	case n == 0:
		return 0, true
	}
	return ends[n-1], true
}
