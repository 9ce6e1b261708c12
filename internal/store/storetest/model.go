package storetest

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"queued/internal/store"
	"queued/job"
)

var modelLaws = []law{
	{"Model_RandomOperationsAgreeWithAModel", modelAgrees},
}

// model is a store in a few lines: what must hold after any sequence of calls. Its
// clock counts hours; everything within one hour is at the same time.
type model struct {
	f    *fixture
	jobs map[int64]*mjob
	dead map[int64]*mdead // by the dead letter's id
	// leases are the tokens and the hour in which each was last renewed.
	leases map[int64]int
	held   []*job.Job // every claim there was
	errs   int64      // rows in job_errors
	hour   int
}

type mjob struct {
	key                     string
	state                   job.State
	priority, due, attempts int
	token                   int64
	replays                 int
}

type mdead struct {
	mjob
	jobID    int64
	jobKey   string
	reaped   bool // the token it died under was the reaper's to end
	replayed bool
}

// rapid's own defaults are for checks in memory: 100 of them, and a file in testdata
// for each failure, where the seed does that is in the output. Flags that are given stay.
var setRapid = sync.OnceFunc(func() {
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for name, value := range map[string]string{"rapid.checks": "20", "rapid.nofailfile": "true"} {
		if !given[name] {
			_ = flag.Set(name, value) // both exist and take the value
		}
	}
})

func modelAgrees(t *testing.T, f *fixture) {
	setRapid()
	rapid.Check(t, func(rt *rapid.T) {
		for _, table := range slices.Sorted(maps.Keys(timeColumns)) {
			f.exec("DELETE FROM " + table)
		}
		m := &model{f: f, jobs: map[int64]*mjob{}, dead: map[int64]*mdead{}, leases: map[int64]int{}}
		rt.Repeat(map[string]func(*rapid.T){
			"":        m.check,
			"enqueue": m.enqueue,
			"claim":   m.claim,
			"finish":  m.finish,
			"cancel":  m.cancel,
			"retry":   m.retry,
			"advance": m.advance,
			"renew":   m.renew,
			"reap":    m.reap,
			"replay":  m.replay,
			"discard": m.discard,
			"retain":  m.retain,
		})
	})
}

func ctx(rt *rapid.T) context.Context { return context.WithoutCancel(rt.Context()) }

// one picks one of the ids, in order, so that a failure can be played again.
func one[V any](rt *rapid.T, what string, m map[int64]V) int64 {
	if len(m) == 0 {
		rt.Skip("no " + what)
	}
	ids := slices.Sorted(maps.Keys(m))
	return ids[rapid.IntRange(0, len(ids)-1).Draw(rt, what)]
}

func (m *model) enqueue(rt *rapid.T) {
	in := make([]job.New, rapid.IntRange(1, 4).Draw(rt, "jobs"))
	delays := make([]int, len(in))
	for i := range in {
		delays[i] = rapid.SampledFrom([]int{0, 0, 1, 3}).Draw(rt, "delay")
		in[i] = job.New{
			Kind: "k", Key: rapid.SampledFrom([]string{"", "", "a", "b", "c"}).Draw(rt, "key"),
			Priority: rapid.SampledFrom([]int{0, 1, 9}).Draw(rt, "priority"), Delay: time.Duration(delays[i]) * time.Hour,
		}
	}
	got, err := m.f.Enqueue(ctx(rt), in)
	if err != nil {
		rt.Fatalf("enqueue: %v", err)
	}
	for i, n := range in {
		if id := m.byKey(n.Key); id != 0 {
			if got[i] != (store.Enqueued{ID: id}) {
				rt.Fatalf("enqueue %+v: got %+v, want the job %d", n, got[i], id)
			}
			continue
		}
		if !got[i].New || m.jobs[got[i].ID] != nil {
			rt.Fatalf("enqueue %+v: got %+v, want a new job", n, got[i])
		}
		m.jobs[got[i].ID] = &mjob{key: n.Key, state: job.Ready, priority: n.Priority, due: m.hour + delays[i]}
	}
}

func (m *model) byKey(key string) int64 {
	for id, j := range m.jobs {
		if key != "" && j.key == key {
			return id
		}
	}
	return 0
}

func (m *model) claim(rt *rapid.T) {
	limit := rapid.IntRange(1, 5).Draw(rt, "limit")
	// A store may find within seconds what became due behind its back; a new one at once.
	s, err := m.f.db.Store(time.Time{})
	if err != nil {
		rt.Fatal(err)
	}
	c, err := s.Claim(ctx(rt), request(limit))
	if err := errors.Join(err, s.Close()); err != nil {
		rt.Fatalf("claim: %v", err)
	}
	var due []int64
	for id, j := range m.jobs {
		if j.state == job.Ready && j.due <= m.hour {
			due = append(due, id)
		}
	}
	rank := func(a, b int64) int {
		return cmp.Or(cmp.Compare(m.jobs[b].priority, m.jobs[a].priority), cmp.Compare(m.jobs[a].due, m.jobs[b].due))
	}
	slices.SortFunc(due, rank)
	if want := min(limit, len(due)); len(c.Jobs) != want || c.More != (want == limit) {
		rt.Fatalf("claim: got %d jobs, more %t, want %d of %d due, limit %d", len(c.Jobs), c.More, want, len(due), limit)
	}
	for i, j := range c.Jobs {
		mj := m.jobs[j.ID]
		if mj == nil || !slices.Contains(due, j.ID) || rank(j.ID, due[i]) != 0 {
			rt.Fatalf("claim: got job %d (%+v) at place %d, want one like %d (%+v)", j.ID, mj, i, due[i], m.jobs[due[i]])
		}
		if j.Attempt != mj.attempts+1 || j.Key != mj.key || j.Token != c.Token || j.Replays != mj.replays || j.Bad != "" {
			rt.Fatalf("claim: got %+v of %+v", j, mj)
		}
	}
	for _, j := range c.Jobs {
		mj := m.jobs[j.ID]
		mj.state, mj.token = job.Running, c.Token
		mj.attempts++
		m.held = append(m.held, j)
	}
	if len(c.Jobs) > 0 {
		m.leases[c.Token] = m.hour
	}
}

// finish ends some of the claims, also such as have ended long ago.
func (m *model) finish(rt *rapid.T) {
	if len(m.held) == 0 {
		rt.Skip("nothing was claimed")
	}
	var f store.Finish
	var want [][]store.Fate // those that are right
	seen := map[int64]bool{}
	for range rapid.IntRange(1, 4).Draw(rt, "writes") {
		// Mostly from the latest.
		j := m.held[len(m.held)-1-rapid.IntRange(0, len(m.held)-1).Draw(rt, "claim")]
		if seen[j.ID] {
			continue
		}
		seen[j.ID] = true
		w := endings(j)[rapid.SampledFrom([]string{"done", "retry", "release", "dead"}).Draw(rt, "ending")]
		if w.Delay > 0 {
			w.Delay = time.Hour
		}
		f.Writes = append(f.Writes, w)
		want = append(want, m.end(w, false))
	}
	fates, err := m.f.Finish(ctx(rt), f)
	if err != nil {
		rt.Fatalf("finish: %v", err)
	}
	for i, fate := range fates {
		if !slices.Contains(want[i], fate) {
			rt.Fatalf("finish %+v: got %s, want %v", f.Writes[i], fateName(fate), want[i])
		}
	}
}

// end does to the model what a write does, and returns its fate.
func (m *model) end(w job.Write, reaper bool) []store.Fate {
	j := m.jobs[w.ID]
	if j == nil || j.state != job.Running || j.token != w.Token {
		for _, d := range m.dead {
			if d.jobID == w.ID && d.token == w.Token && w.To == job.Dead {
				if d.reaped {
					return []store.Fate{store.Recorded, store.LeaseLost} // nobody can tell who wrote it
				}
				return []store.Fate{store.Recorded}
			}
		}
		if j != nil && j.token == w.Token && j.state == w.To {
			return []store.Fate{store.Recorded} // it repeats what was recorded
		}
		return []store.Fate{store.LeaseLost}
	}
	if w.Failed() {
		m.errs++
	}
	switch w.To {
	case job.Done:
		j.state = job.Done
	case job.Ready:
		j.state = job.Ready
		if !w.KeepDue {
			j.due = m.hour + int(w.Delay/time.Hour)
		}
		if w.Uncount {
			j.attempts--
		}
		if reaper {
			j.token = 0
		}
	case job.Dead:
		delete(m.jobs, w.ID)
		// Under the job's id until check finds out the dead letter's own.
		m.dead[-w.ID] = &mdead{mjob: *j, jobID: w.ID, jobKey: w.JobKey, reaped: reaper}
	case job.Running, job.Cancelled:
	}
	return []store.Fate{store.Recorded}
}

func (m *model) cancel(rt *rapid.T) {
	id := one(rt, "job", m.jobs)
	j := m.jobs[id]
	var want error
	if j.state != job.Ready && j.state != job.Running {
		want = store.ErrState
	}
	if err := m.f.CancelJob(ctx(rt), id); !errors.Is(err, want) {
		rt.Fatalf("cancel %+v: got %v, want %v", j, err, want)
	}
	if want == nil {
		j.state = job.Cancelled
	}
}

func (m *model) retry(rt *rapid.T) {
	id := one(rt, "job", m.jobs)
	j := m.jobs[id]
	var want error
	if j.state != job.Ready && j.state != job.Cancelled {
		want = store.ErrState
	}
	if err := m.f.RetryJob(ctx(rt), id); !errors.Is(err, want) {
		rt.Fatalf("retry %+v: got %v, want %v", j, err, want)
	}
	switch {
	case want != nil:
	case j.state == job.Cancelled:
		j.state, j.attempts, j.due, j.token = job.Ready, 0, m.hour, 0
	default:
		j.due = min(j.due, m.hour)
	}
}

func (m *model) advance(rt *rapid.T) {
	hours := rapid.IntRange(1, 3).Draw(rt, "hours")
	m.hour += hours
	m.f.shift(time.Duration(hours) * time.Hour)
}

func (m *model) renew(rt *rapid.T) {
	if len(m.held) == 0 {
		rt.Skip("nothing was claimed")
	}
	token := m.held[rapid.IntRange(0, len(m.held)-1).Draw(rt, "claim")].Token
	lost, err := m.f.Renew(ctx(rt), owner, lease, []int64{token})
	if err != nil {
		rt.Fatalf("renew: %v", err)
	}
	if _, ok := m.leases[token]; ok == (len(lost) > 0) {
		rt.Fatalf("renew of a lease that is there (%t): lost %v", ok, lost)
	} else if ok {
		m.leases[token] = m.hour
	}
}

func (m *model) reap(rt *rapid.T) {
	leases, err := m.f.Expired(ctx(rt), grace, 100)
	if err != nil {
		rt.Fatalf("expired: %v", err)
	}
	var want, got []int64
	for token, hour := range m.leases {
		if hour < m.hour {
			want = append(want, token)
		}
	}
	for _, l := range leases {
		got = append(got, l.Token)
		var running []int64
		for id, j := range m.jobs {
			if j.state == job.Running && j.token == l.Token {
				running = append(running, id)
			}
		}
		ids := idsOf(l.Jobs)
		slices.Sort(ids)
		slices.Sort(running)
		if !slices.Equal(ids, running) {
			rt.Fatalf("jobs of lease %d: got %v, want %v", l.Token, ids, running)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		rt.Fatalf("expired leases: got %v, want %v", got, want)
	}
	if len(leases) == 0 {
		rt.Skip("no expired lease")
	}
	l := leases[rapid.IntRange(0, len(leases)-1).Draw(rt, "lease")]
	var writes []job.Write
	for _, j := range l.Jobs {
		if rapid.Bool().Draw(rt, "bury") {
			writes = append(writes, bury(j, job.ReasonWorkerDied, "worker died"))
		} else {
			writes = append(writes, retry(j, 0, "worker died"))
		}
	}
	fates, err := m.f.Reap(ctx(rt), l.Token, grace, writes)
	if err != nil {
		rt.Fatalf("reap: %v", err)
	}
	delete(m.leases, l.Token)
	for i, w := range writes {
		if want := m.end(w, true); !slices.Contains(want, fates[i]) {
			rt.Fatalf("reap %+v: got %s, want %v", w, fateName(fates[i]), want)
		}
	}
}

func (m *model) replay(rt *rapid.T) {
	id := one(rt, "dead letter", m.dead)
	d := m.dead[id]
	var want error
	switch {
	case d.replayed:
		want = store.ErrState
	case m.byKey(d.jobKey) != 0:
		want = store.ErrDuplicate
	}
	got, err := m.f.ReplayDead(ctx(rt), id)
	if !errors.Is(err, want) {
		rt.Fatalf("replay %+v: got %v, want %v", d, err, want)
	}
	if want == nil {
		d.replayed = true
		m.jobs[got] = &mjob{key: d.jobKey, state: job.Ready, priority: d.priority, due: m.hour, replays: d.replays + 1}
	}
}

func (m *model) discard(rt *rapid.T) {
	id := one(rt, "dead letter", m.dead)
	if err := m.f.DiscardDead(ctx(rt), id); err != nil {
		rt.Fatalf("discard: %v", err)
	}
	delete(m.dead, id)
}

// retain deletes what ended in an earlier hour.
func (m *model) retain(rt *rapid.T) {
	for cursor := int64(0); ; {
		r, err := m.f.Retain(ctx(rt), store.FinishedJobs, 30*365*24*time.Hour, cursor, 10)
		if err != nil {
			rt.Fatalf("retain: %v", err)
		}
		if r.Deleted != 0 {
			rt.Fatalf("retain: deleted %d young rows", r.Deleted)
		}
		if r.Done {
			break
		}
		cursor = r.Next
	}
	for cursor := int64(0); ; {
		r, err := m.f.Retain(ctx(rt), store.FinishedJobs, 0, cursor, 10)
		if err != nil {
			rt.Fatalf("retain: %v", err)
		}
		if cursor = r.Next; r.Done {
			break
		}
	}
	maps.DeleteFunc(m.jobs, func(_ int64, j *mjob) bool { return j.state == job.Done || j.state == job.Cancelled })
}

// check compares the tables with the model: each job is in exactly one state.
func (m *model) check(rt *rapid.T) {
	var want []string
	for id, j := range m.jobs {
		want = append(want, fmt.Sprintf("%d | %s | %d | %d | %d", id, j.state, j.attempts, j.priority, j.replays))
	}
	got := m.f.dump("SELECT id, status, attempts, priority, replays FROM jobs")
	slices.Sort(want)
	slices.Sort(got)
	if diff := gocmp.Diff(want, got); diff != "" {
		rt.Fatalf("jobs (-want +got):\n%s", diff)
	}
	for _, d := range m.f.dead() {
		if md := m.dead[-d.JobID]; md != nil {
			delete(m.dead, -d.JobID)
			m.dead[d.ID] = md
		}
		md := m.dead[d.ID]
		if md == nil || md.jobID != d.JobID || md.jobKey != d.JobKey || md.attempts != d.Attempts || md.replays != d.Replays || md.replayed != (d.ReplayedAt != nil) {
			rt.Fatalf("dead letter: got %+v, want %+v", d, md)
		}
	}
	if n := m.f.int("SELECT COUNT(*) FROM dead_jobs"); n != int64(len(m.dead)) {
		rt.Fatalf("dead letters: got %d, want %d", n, len(m.dead))
	}
	if n := m.f.int("SELECT COUNT(*) FROM job_errors"); n != m.errs {
		rt.Fatalf("error rows: got %d, want %d", n, m.errs)
	}
	if n := m.f.int("SELECT COUNT(*) FROM leases"); n != int64(len(m.leases)) {
		rt.Fatalf("leases: got %d, want %d", n, len(m.leases))
	}
	// Every running job is covered: there are no orphans.
	if list, _, err := m.f.Orphans(ctx(rt), 0, 1000); err != nil || len(list) != 0 {
		rt.Fatalf("orphans: %v, %v", idsOf(list), err)
	}
}
