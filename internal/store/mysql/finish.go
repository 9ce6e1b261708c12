package mysql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"queued/internal/store"
	"queued/job"
)

// Finish writes outcomes; see store.Finisher.
//
// A batch in which all went well is one packet: an UPDATE per lease token, whose
// row counts tell whether every row was still ours. Only if some were not, or the batch
// is being repeated, is it looked up which. Other outcomes first lock the rows
// that are ours and then write for those alone, so that a lost lease leaves no trace.
func (s *Store) Finish(ctx context.Context, f store.Finish) ([]store.Fate, error) {
	v, err := s.probe(ctx)
	if err != nil {
		return nil, fmt.Errorf("finish: %w", err)
	}
	var fates []store.Fate
	write := func(f store.Finish, d degrade) error {
		return s.do(ctx, "finish", s.db, func(c *conn) error {
			var err error
			if allDone(f.Writes) {
				fates, err = s.finishDone(c, f, d)
			} else {
				fates, err = s.finishMixed(c, v, f, d)
			}
			return err
		})
	}
	if err := write(f, nothing); err == nil || !refused(err) {
		return fates, err
	}
	// The server refuses a value or table of this batch. One by one, so that it
	// stays with the row concerned, and with what can be done without.
	all := make([]store.Fate, len(f.Writes))
	for i, w := range f.Writes {
		one := store.Finish{Writes: []job.Write{w}, Owner: f.Owner}
		err := write(one, nothing)
		if refused(err) {
			s.opts.Logger.Error("outcome refused by the server, writing it without its text",
				zap.Int64("job_id", w.ID), zap.String("kind", w.Kind), zap.String("to", string(w.To)), zap.Error(err))
			err = write(one, dropText)
		}
		for d := keepJob; refused(err) && w.To != job.Done && d <= dropRows; d++ {
			err = write(one, d)
		}
		if err != nil {
			return nil, err
		}
		all[i] = fates[0]
	}
	if len(f.Settled)+len(f.Counts) > 0 {
		if err := write(store.Finish{Settled: f.Settled, Counts: f.Counts, Owner: f.Owner}, nothing); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// degrade says what to do without when the server refuses an outcome.
type degrade uint8

const (
	nothing  degrade = iota
	dropText         // results and error texts are replaced by a note
	keepJob          // instead of a dead letter the job is ready again
	dropRows         // the same, and no row in job_errors
)

// refused says whether the server took exception to a value or a table, which a
// repeat won't mend.
func refused(err error) bool {
	switch codeOf(err) {
	case 1114, 1021, // this table is full; if all are, the degraded write fails as well
		1142, 1143, // no privilege on this table or column
		1146, 1054: // this table or column is missing
		return true
	}
	return errors.Is(err, store.ErrData) || errors.Is(err, store.ErrDuplicate)
}

const droppedNote = "(text refused by the database)"

func allDone(writes []job.Write) bool {
	return !slices.ContainsFunc(writes, func(w job.Write) bool { return w.To != job.Done })
}

func (s *Store) finishDone(c *conn, f store.Finish, d degrade) ([]store.Fate, error) {
	fates := make([]store.Fate, len(f.Writes))
	var b strings.Builder
	var args []any
	b.WriteString("START TRANSACTION; ")
	s.settle(&b, f.Settled)
	groups := byToken(f.Writes)
	first := 1 + min(len(f.Settled), 1) // index of the first UPDATE's row count
	for _, g := range groups {
		args = s.setDone(&b, args, f.Writes, g, d)
	}
	args = s.count(&b, args, f)
	b.WriteString("COMMIT")
	c.inTx = true
	counts, err := c.exec(b.String(), args...)
	if err != nil {
		return nil, err
	}
	c.inTx = false
	for i, g := range groups {
		if counts[first+i] == int64(len(g.at)) {
			for _, at := range g.at {
				fates[at] = store.Recorded
			}
		} else if err := s.lookUp(c, f.Writes, g.at, fates); err != nil {
			return nil, err
		}
	}
	return fates, nil
}

// group holds the places of the writes under one token, by job id.
type group struct {
	token int64
	at    []int
}

func byToken(writes []job.Write) []group {
	var groups []group
	for i, w := range writes {
		g := slices.IndexFunc(groups, func(g group) bool { return g.token == w.Token })
		if g < 0 {
			groups = append(groups, group{token: w.Token})
			g = len(groups) - 1
		}
		groups[g].at = append(groups[g].at, i)
	}
	for _, g := range groups {
		slices.SortFunc(g.at, func(a, b int) int { return int(writes[a].ID - writes[b].ID) })
	}
	return groups
}

func (s *Store) setDone(b *strings.Builder, args []any, writes []job.Write, g group, d degrade) []any {
	fmt.Fprintf(b, "UPDATE %s SET status = 'done', finished_at = NOW(3)", s.t.jobs)
	cases := 0
	for _, at := range g.at {
		if w := &writes[at]; w.Result != "" && d == nothing {
			if cases++; cases == 1 {
				b.WriteString(", result = CASE id")
			}
			fmt.Fprintf(b, " WHEN %d THEN ?", w.ID)
			args = append(args, job.Clean(w.Result, job.ResultLimit))
		}
	}
	if cases > 0 {
		b.WriteString(" END")
	}
	b.WriteString(" WHERE id IN (")
	for i, at := range g.at {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(b, "%d", writes[at].ID)
	}
	fmt.Fprintf(b, ") AND token = %d AND status = 'running'; ", g.token)
	return args
}

func (s *Store) settle(b *strings.Builder, tokens []int64) {
	if len(tokens) > 0 {
		tokens = slices.Sorted(slices.Values(tokens))
		fmt.Fprintf(b, "DELETE FROM %s WHERE token IN (%s); ", s.t.leases, idList(tokens))
	}
}

// count adds to the counters of this minute. The rows are this owner's alone.
func (s *Store) count(b *strings.Builder, args []any, f store.Finish) []any {
	if len(f.Counts) == 0 {
		return args
	}
	fmt.Fprintf(b, "INSERT INTO %s (minute_at, owner, queue, kind, done, failed, dead, run_ms) VALUES ", s.t.counters)
	for i, n := range f.Counts {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(b, "(NOW() - INTERVAL SECOND(NOW()) SECOND, %d, ?, ?, %d, %d, %d, %d)", f.Owner, n.Done, n.Failed, n.Dead, n.RunTime.Milliseconds())
		args = append(args, n.Queue, n.Kind)
	}
	b.WriteString(" ON DUPLICATE KEY UPDATE done = done + VALUES(done), failed = failed + VALUES(failed), dead = dead + VALUES(dead), run_ms = run_ms + VALUES(run_ms); ")
	return args
}

// lookUp tells for writes that may have changed nothing whether the row says
// that they took effect: a row keeps the token of its last claim, so a repeated
// write finds its own trace.
func (s *Store) lookUp(c *conn, writes []job.Write, at []int, fates []store.Fate) error {
	if len(at) == 0 {
		return nil
	}
	ids := make([]int64, 0, len(at))
	place := map[[2]int64]int{}
	for _, i := range at {
		fates[i] = store.LeaseLost
		ids = append(ids, writes[i].ID)
		place[[2]int64{writes[i].ID, writes[i].Token}] = i
	}
	slices.Sort(ids)
	return c.query(func(r row) error {
		if i, ok := place[[2]int64{r.int(0), r.int(1)}]; ok && r.str(2) == string(writes[i].To) {
			fates[i] = store.Recorded
		}
		return nil
	}, fmt.Sprintf("SELECT id, token, status FROM %s WHERE id IN (%s); SELECT job_id, token, 'dead' FROM %s WHERE job_id IN (%s)",
		s.t.jobs, idList(ids), s.t.dead, idList(ids)))
}

func (s *Store) finishMixed(c *conn, v *server, f store.Finish, d degrade) ([]store.Fate, error) {
	c.inTx = true
	var b strings.Builder
	b.WriteString("START TRANSACTION; ")
	s.settle(&b, f.Settled)
	fates, err := s.apply(c, v, b.String(), f.Writes, d, false)
	if err != nil {
		return nil, err
	}
	b.Reset()
	args := s.count(&b, nil, f)
	b.WriteString("COMMIT")
	if _, err := c.exec(b.String(), args...); err != nil {
		return nil, err
	}
	c.inTx = false
	return fates, nil
}

// chunkBytes bounds the text of one packet, well below the smallest
// max_allowed_packet that servers come with (4 MiB).
const chunkBytes = 1 << 20

// apply does the writes within the open transaction: it sends head and locks the
// rows that are running under the writes' tokens, then writes for those. Each
// statement carries the tokens all the same.
//
// takeAway is the reaper's: rows that become ready lose the token, so that what the
// worker writes late doesn't find it and take the reaper's write for its own.
func (s *Store) apply(c *conn, v *server, head string, writes []job.Write, d degrade, takeAway bool) ([]store.Fate, error) {
	fates := make([]store.Fate, len(writes))
	ids := make([]int64, len(writes))
	place := make(map[[2]int64]int, len(writes))
	for i, w := range writes {
		ids[i] = w.ID
		place[[2]int64{w.ID, w.Token}] = i
	}
	slices.Sort(ids)
	if len(ids) == 0 {
		if head != "" {
			if _, err := c.exec(head); err != nil {
				return nil, err
			}
		}
		return fates, nil
	}
	var owned []int // places of the writes whose row is ours, by job id
	if err := c.query(func(r row) error {
		if i, ok := place[[2]int64{r.int(0), r.int(1)}]; ok {
			owned = append(owned, i)
			fates[i] = store.Recorded
		}
		return nil
	}, fmt.Sprintf("%sSELECT id, token FROM %s WHERE id IN (%s) AND status = 'running' ORDER BY id FOR UPDATE", head, s.t.jobs, idList(ids))); err != nil {
		return nil, err
	}
	if len(owned) < len(writes) {
		var rest []int
		for i := range fates {
			if fates[i] == 0 {
				rest = append(rest, i)
			}
		}
		if err := s.lookUp(c, writes, rest, fates); err != nil {
			return nil, err
		}
	}
	for lo := 0; lo < len(owned); {
		hi, size := lo, 0
		for hi < len(owned) && (hi == lo || size < chunkBytes) {
			w := &writes[owned[hi]]
			size += 3*len(w.Error) + 2*len(w.Result) + 256
			hi++
		}
		if err := s.applyChunk(c, v, writes, owned[lo:hi], fates, d, takeAway); err != nil {
			return nil, err
		}
		lo = hi
	}
	return fates, nil
}

func (s *Store) applyChunk(c *conn, v *server, writes []job.Write, owned []int, fates []store.Fate, d degrade, takeAway bool) error {
	var done, ready, dead, failed []int
	for _, i := range owned {
		w := &writes[i]
		switch w.To {
		case job.Done:
			done = append(done, i)
		case job.Ready:
			ready = append(ready, i)
		case job.Dead:
			dead = append(dead, i)
		case job.Running, job.Cancelled:
			return fmt.Errorf("finish job %d: a run can't end in state %s", w.ID, w.To)
		}
		if w.Failed() && d < dropRows {
			failed = append(failed, i)
		}
	}
	var b strings.Builder
	var args []any
	for _, g := range byToken(pickWrites(writes, done)) {
		args = s.setDone(&b, args, pickWrites(writes, done), g, d)
	}
	if len(ready) > 0 {
		s.setReady(&b, v, writes, ready, takeAway)
	}
	if d >= keepJob {
		s.unbury(&b, v, writes, dead, fates)
	} else if len(dead) > 0 {
		args = s.bury(&b, args, writes, dead, d)
	}
	if len(failed) > 0 {
		args = s.recordErrors(&b, args, writes, failed, d)
	}
	_, err := c.exec(strings.TrimSuffix(b.String(), "; "), args...)
	return err
}

func pickWrites(writes []job.Write, at []int) []job.Write {
	picked := make([]job.Write, len(at))
	for i, p := range at {
		picked[i] = writes[p]
	}
	return picked
}

// guard is the WHERE of a write after the claim.
func guard(b *strings.Builder, writes []job.Write, at []int) {
	b.WriteString(" WHERE id IN (")
	var tokens []int64
	for i, p := range at {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(b, "%d", writes[p].ID)
		if !slices.Contains(tokens, writes[p].Token) {
			tokens = append(tokens, writes[p].Token)
		}
	}
	fmt.Fprintf(b, ") AND token IN (%s) AND status = 'running'", idList(tokens))
}

func (s *Store) setReady(b *strings.Builder, v *server, writes []job.Write, at []int, takeAway bool) {
	fmt.Fprintf(b, "UPDATE %s SET status = 'ready'%s, available_at = CASE id", s.t.jobs, v.pendingSet(true))
	var uncount []int64
	for _, p := range at {
		w := &writes[p]
		if w.KeepDue {
			fmt.Fprintf(b, " WHEN %d THEN available_at", w.ID)
		} else {
			fmt.Fprintf(b, " WHEN %d THEN NOW(3) + INTERVAL %d MICROSECOND", w.ID, micros(roundUp(w.Delay)))
		}
		if w.Uncount {
			uncount = append(uncount, w.ID)
		}
	}
	b.WriteString(" END")
	if len(uncount) > 0 {
		fmt.Fprintf(b, ", attempts = attempts - (attempts > 0 AND id IN (%s))", idList(uncount))
	}
	if takeAway {
		b.WriteString(", token = 0")
	}
	guard(b, writes, at)
	b.WriteString("; ")
}

// roundUp makes a delay whole milliseconds, the columns' precision, so that it
// is never shortened.
func roundUp(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1).Truncate(time.Millisecond)
}

// bury moves rows to dead_jobs.
func (s *Store) bury(b *strings.Builder, args []any, writes []job.Write, at []int, d degrade) []any {
	column := func(value func(w *job.Write) string) {
		b.WriteString("CASE id")
		for _, p := range at {
			fmt.Fprintf(b, " WHEN %d THEN ?", writes[p].ID)
			args = append(args, value(&writes[p]))
		}
		b.WriteString(" END, ")
	}
	fmt.Fprintf(b, "INSERT INTO %s (job_key, reason, error, job_id, queue, kind, idempotency_key, payload, priority, max_attempts,"+
		" timeout_ms, available_at, expires_at, created_at, attempts, token, replays) SELECT ", s.t.dead)
	column(func(w *job.Write) string { return w.JobKey })
	column(func(w *job.Write) string { return w.Reason })
	column(func(w *job.Write) string { return errorText(w, d) })
	fmt.Fprintf(b, "id, queue, kind, idempotency_key, payload, priority, max_attempts, timeout_ms, available_at, expires_at, created_at, attempts, token, replays FROM %s", s.t.jobs)
	guard(b, writes, at)
	fmt.Fprintf(b, " ORDER BY id; DELETE FROM %s", s.t.jobs)
	guard(b, writes, at)
	b.WriteString("; ")
	return args
}

// unbury makes jobs ready again whose dead letter the server refuses. With their
// attempts used up they are not run again: the next claim tries to bury them once more.
func (s *Store) unbury(b *strings.Builder, v *server, writes []job.Write, at []int, fates []store.Fate) {
	if len(at) == 0 {
		return
	}
	for _, p := range at {
		fates[p] = store.NotBuried
	}
	fmt.Fprintf(b, "UPDATE %s SET status = 'ready'%s, available_at = NOW(3) + INTERVAL %d MICROSECOND, max_attempts = GREATEST(LEAST(attempts, %d), 1)",
		s.t.jobs, v.pendingSet(true), micros(store.UnburiedDelay), job.MaxMaxAttempts)
	guard(b, writes, at)
	b.WriteString("; ")
}

func (s *Store) recordErrors(b *strings.Builder, args []any, writes []job.Write, at []int, d degrade) []any {
	fmt.Fprintf(b, "INSERT INTO %s (job_id, job_key, attempt, error) VALUES ", s.t.errors)
	for i, p := range at {
		if i > 0 {
			b.WriteString(", ")
		}
		w := &writes[p]
		fmt.Fprintf(b, "(%d, ?, %d, ?)", w.ID, w.Attempt)
		args = append(args, w.JobKey, errorText(w, d))
	}
	b.WriteString("; ")
	return args
}

func errorText(w *job.Write, d degrade) string {
	if d == dropText {
		return droppedNote
	}
	return job.Clean(w.Error, job.ErrorLimit)
}
