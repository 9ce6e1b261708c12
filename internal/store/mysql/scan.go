package mysql

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"queued/internal/store"
	"queued/job"
)

// arm is one range of the poll index: a queue and priority.
type arm struct {
	queue    string
	priority int
}

// marks remember where each arm's ready rows begin, so that index entries that
// are dead but kept for somebody's old snapshot are not walked again and again.
type marks struct {
	mu sync.Mutex
	m  map[arm]time.Time // due times before it have been claimed
	// levels are the priorities, as bits, that a queue's jobs were seen to have.
	// Each has an arm; the others share one arm per gap, which only says that a
	// row is there. So a queue without priorities costs two arms a poll, not ten.
	levels map[string]uint16
	// A row that becomes visible behind a mark (its producer committed late) is
	// found by a scan without marks, which comes every fullEvery. Each queue has its
	// turn: one that is asked seldom must not lose it to one that is asked often.
	full   map[string]fullScan
	hot    bool // the last claim got all it asked for: more is surely there
	spread int  // CAS: width of the window, in batches, to keep claimers apart
	clean  int  // claims in a row that lost nothing
}

// fullScan is when a queue is scanned without marks next, and what it took last.
type fullScan struct {
	next time.Time
	cost time.Duration
}

const (
	fullEvery = time.Second
	// An old snapshot can make the full scan expensive. Then it comes so seldom
	// that it stays under 1 % of the polls, and the delay of late rows below fullAtMost.
	fullCheap  = time.Millisecond
	fullSeldom = 6 * time.Second
	fullAtMost = 30 * time.Second
	// markLag is how far a drained arm is searched behind the server's time:
	// producers' NOW() cuts off the milliseconds, and a commit takes its time.
	markLag = 2 * time.Second

	// dearGap: an index full of dead entries under a gap's arm, which has no mark.
	// From then on all priorities have arms.
	dearGap   = 5 * time.Millisecond
	allLevels = 1<<(job.MaxPriority+1) - 1

	maxSpread = 16
	// badRows is how many rows with an impossible priority a full scan takes.
	badRows = 20
)

// candidate is a due row as the poll index shows it.
type candidate struct {
	id       int64
	due      time.Time
	priority int
	queue    int // index in wants
}

// scan looks for candidates once.
type scan struct {
	wants  []store.Want
	full   []bool // per want: without marks
	hot    bool
	spread int // batches to look at, 1 with SKIP LOCKED
	lower  map[arm]time.Time
	levels []uint16 // per want

	found []candidate // in run order, queue after queue
	now   time.Time   // server's
	cost  time.Duration
}

func (s *Store) newScan(wants []store.Want, skipLocked bool) *scan {
	m := &s.marks
	m.mu.Lock()
	defer m.mu.Unlock()
	sc := &scan{wants: wants, hot: m.hot, spread: m.spread, lower: map[arm]time.Time{}}
	if skipLocked {
		sc.spread = 1
	}
	sc.levels = make([]uint16, len(wants))
	for i, w := range wants {
		sc.levels[i] = m.levels[w.Queue] | 1<<job.MinPriority
	}
	now := time.Now()
	for _, w := range wants {
		full := !now.Before(m.full[w.Queue].next)
		sc.full = append(sc.full, full)
		for p := job.MinPriority; p <= job.MaxPriority && !full; p++ {
			if t, ok := m.m[arm{w.Queue, p}]; ok {
				sc.lower[arm{w.Queue, p}] = t
			}
		}
	}
	return sc
}

const timeFormat = "2006-01-02 15:04:05.000"

// run fills in found. With lock it opens a transaction and locks what it finds.
func (sc *scan) run(c *conn, s *Store, lock bool) error {
	for {
		text, args := sc.statements(s, lock)
		sc.found = sc.found[:0]
		news := false // priorities seen for the first time
		begin := time.Now()
		err := c.query(func(r row) error {
			id, priority, queue := r.int(0), int(r.int(2)), int(r.int(3))
			switch {
			case id == 0:
				sc.now = r.time(1)
			case r.int(4) != 0:
				sc.levels[queue] |= 1 << priority
				news = true
			default:
				sc.found = append(sc.found, candidate{id: id, due: r.time(1), priority: priority, queue: queue})
			}
			return nil
		}, text, args...)
		sc.cost = time.Since(begin)
		if err != nil || !news {
			return err
		}
		// The order is only right with the new arms.
	}
}

func (sc *scan) statements(s *Store, lock bool) (string, []any) {
	var b strings.Builder
	var args []any
	suffix := ")"
	if lock {
		b.WriteString("START TRANSACTION; ")
		suffix = " FOR UPDATE SKIP LOCKED)"
	}
	for qi, w := range sc.wants {
		if qi > 0 {
			b.WriteString("; ")
		}
		limit := w.Limit * sc.spread
		// The first row brings the server's time, with which the marks are set.
		fmt.Fprintf(&b, "(SELECT 0 AS id, NOW(3) AS due, 0 AS priority, %d AS queue, 0 AS gap)", qi)
		branch := func(where, order string, gap, limit int, suffix string) {
			fmt.Fprintf(&b, " UNION ALL (SELECT id, available_at, priority, %d, %d FROM %s FORCE INDEX (jobs_poll) WHERE queue = ? AND pending = 1 AND %s%s LIMIT %d%s",
				qi, gap, s.t.jobs, where, order, limit, suffix)
			args = append(args, w.Queue)
		}
		var hi int
		for lo := job.MinPriority; lo <= job.MaxPriority; lo = hi + 1 {
			hi = lo
			if sc.levels[qi]>>lo&1 == 1 {
				continue
			}
			for hi < job.MaxPriority && sc.levels[qi]>>(hi+1)&1 == 0 {
				hi++
			}
			branch(fmt.Sprintf("priority BETWEEN %d AND %d", lo, hi), "", 1, 1, ")")
		}
		if sc.full[qi] {
			branch(fmt.Sprintf("priority > %d AND available_at <= NOW(3)", job.MaxPriority), "", 0, badRows, suffix)
		}
		for p := job.MaxPriority; p >= job.MinPriority; p-- {
			if sc.levels[qi]>>p&1 == 0 {
				continue
			}
			from := ""
			if t, ok := sc.lower[arm{w.Queue, p}]; ok {
				from = " AND available_at >= TIMESTAMP'" + t.Format(timeFormat) + "'"
			}
			branch(fmt.Sprintf("priority = %d%s AND available_at <= NOW(3)", p, from), " ORDER BY available_at, id", 0, limit, suffix)
		}
		if sc.full[qi] {
			branch(fmt.Sprintf("priority < %d AND available_at <= NOW(3)", job.MinPriority), "", 0, badRows, suffix)
		}
		// Servers that stream a UNION stop here, and lock nothing of the arms behind.
		// A gap's row needs no place in the limit: with one in it the scan is repeated.
		fmt.Fprintf(&b, " LIMIT %d", limit+1)
	}
	return b.String(), args
}

// pick chooses what to take of the found: all, or with a spread a window of the
// wanted size at a random place. more says that a queue had all that was wanted.
func (sc *scan) pick() (picked []candidate, more bool) {
	for lo := 0; lo < len(sc.found); {
		queue := sc.found[lo].queue
		hi := lo
		for hi < len(sc.found) && sc.found[hi].queue == queue {
			hi++
		}
		limit := sc.wants[queue].Limit
		if extra := hi - lo - limit; extra > 0 {
			lo += rand.IntN(extra + 1)
			more = true
			picked = append(picked, sc.found[lo:lo+limit]...)
		} else {
			more = more || extra == 0
			picked = append(picked, sc.found[lo:hi]...)
		}
		lo = hi
	}
	return picked, more
}

// learn moves the marks after a claim that took won of picked, or failed.
func (s *Store) learn(sc *scan, picked []candidate, won int, err error) {
	m := &s.marks
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		// What was looked at may still be there: begin again without marks.
		for _, w := range sc.wants {
			delete(m.full, w.Queue)
		}
		m.hot = false
		return
	}
	m.hot = false
	taken := make(map[int64]bool, len(picked))
	for _, c := range picked {
		taken[c.id] = true
	}
	for qi, w := range sc.wants {
		if sc.full[qi] {
			// The cheaper of the last two: one slow answer says nothing.
			every, cost := fullEvery, min(sc.cost, m.full[w.Queue].cost)
			if cost > fullCheap {
				every = min(max(1000*cost, fullSeldom), fullAtMost)
			}
			m.full[w.Queue] = fullScan{next: time.Now().Add(every), cost: sc.cost}
		} else if sc.cost > dearGap {
			sc.levels[qi] = allLevels
		}
		m.levels[w.Queue] = sc.levels[qi]
		next := job.MaxPriority + 1 // the lowest arm that was reached
		count := 0
		kept := map[int]time.Time{} // per priority, the first candidate that was left
		for _, c := range sc.found {
			if c.queue != qi {
				continue
			}
			count++
			next = min(c.priority, next)
			if _, ok := kept[c.priority]; !ok && !taken[c.id] {
				kept[c.priority] = c.due
			}
		}
		cut := count >= w.Limit*sc.spread // the scan ended before the arms did
		m.hot = m.hot || count >= w.Limit
		for p := job.MaxPriority; p >= job.MinPriority; p-- {
			key := arm{w.Queue, p}
			left, ok := kept[p]
			switch {
			case ok:
				m.m[key] = left
			case cut && p < next: // not looked at
			case cut && p == next:
				m.m[key] = lastDue(sc.found, qi, p)
			default:
				m.m[key] = sc.now.Add(-markLag)
			}
		}
	}
	switch lost := len(picked) - won; {
	case lost*8 > len(picked):
		m.spread, m.clean = min(m.spread*2, maxSpread), 0
	case lost == 0:
		if m.clean++; m.clean >= 16 {
			m.spread, m.clean = max(m.spread/2, 1), 0
		}
	}
}

func lastDue(found []candidate, queue, priority int) (t time.Time) {
	for _, c := range found {
		if c.queue == queue && c.priority == priority {
			t = c.due
		}
	}
	return t
}
