package mysql

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"queued/internal/store"
	"queued/job"
)

// A claim is two packets. The first looks for candidates: one arm of the poll
// index per priority, so that no rows are sorted and no payload is read. The
// second writes the lease, takes the candidates by primary key and reads them
// back under the new token.
//
// With SKIP LOCKED the first packet opens the transaction and locks what it
// finds, so that claimers never wait for each other. With CAS it locks
// nothing, and who comes second finds the row no longer ready.

// Claim takes due jobs; see store.Claimer.
func (s *Store) Claim(ctx context.Context, req store.ClaimRequest) (store.Claimed, error) {
	v, err := s.probe(ctx)
	if err != nil {
		return store.Claimed{}, fmt.Errorf("claim: %w", err)
	}
	sc := s.newScan(req.Wants, v.skipLocked)
	token := store.NewToken()
	var picked []candidate // what was sent for the taking
	var out store.Claimed
	err = s.do(ctx, "claim", s.db, func(c *conn) error {
		out, picked = store.Claimed{}, nil
		if !v.skipLocked || !sc.hot {
			// Nothing is locked or written while there is nothing to do.
			if err := sc.run(c, s, false); err != nil {
				return err
			}
			if len(sc.found) == 0 {
				return nil
			}
		}
		if v.skipLocked {
			c.inTx = true
			if err := sc.run(c, s, true); err != nil {
				return err
			}
		}
		var more bool
		if picked, more = sc.pick(); len(picked) == 0 {
			return nil // taken by others between the look and the lock
		}
		// The caller's cancel must not leave jobs claimed that nobody knows of.
		parent := c.ctx
		var cancel context.CancelFunc
		c.ctx, cancel = context.WithTimeout(context.WithoutCancel(parent), s.opts.OpTimeout)
		defer func() { cancel(); c.ctx = parent }()
		jobs, err := s.take(c, v, req, token, picked)
		out = store.Claimed{Token: token, Jobs: jobs, More: more}
		return err
	})
	if err != nil && picked != nil && !answered(err) {
		if out.Jobs, err = s.recoverClaim(ctx, req, token, picked, err); err == nil {
			out.Token = token
		}
	}
	if code := codeOf(err); code == errSyntax || code == errNotSupported {
		s.forget(v) // failed over to a server that lacks what the last one had
	}
	s.learn(sc, picked, len(out.Jobs), err)
	if err != nil {
		return store.Claimed{}, err
	}
	return out, nil
}

// take claims the candidates under token and returns those that were still
// ready, in run order. The lease comes first: whoever writes to both tables takes
// leases before jobs, and recoverClaim relies on it.
func (s *Store) take(c *conn, v *server, req store.ClaimRequest, token int64, picked []candidate) ([]*job.Job, error) {
	ids := idsOf(picked)
	list := idList(ids)
	var b strings.Builder
	if !c.inTx {
		b.WriteString("START TRANSACTION; ")
	}
	c.inTx = true
	fmt.Fprintf(&b, "INSERT INTO %s (token, owner, expires_at, job_ids) VALUES (%d, %d, NOW(3) + INTERVAL %d MICROSECOND, '%s'); ",
		s.t.leases, token, req.Owner, micros(req.Lease), store.EncodeIDs(ids))
	// attempts stops at the column's end instead of failing the batch.
	fmt.Fprintf(&b, "UPDATE %s SET status = 'running', token = %d, attempts = attempts + (attempts < 2147483647), claimed_at = NOW(3)%s"+
		" WHERE id IN (%s) AND status = 'ready' AND available_at <= NOW(3) AND queue IN (?%s); ", s.t.jobs, token, v.pendingSet(false), list,
		strings.Repeat(", ?", len(req.Wants)-1))
	args := make([]any, len(req.Wants))
	for i, w := range req.Wants {
		args[i] = w.Queue
	}
	s.selectTaken(&b, token, list)
	b.WriteString("; COMMIT")
	jobs, err := s.readTaken(c, req, token, b.String(), args...)
	if err != nil {
		return nil, err
	}
	c.inTx = false
	if len(jobs) == 0 {
		// All were lost to others: the lease covers nothing.
		_, err = c.exec(fmt.Sprintf("DELETE FROM %s WHERE token = %d", s.t.leases, token))
	}
	return jobs, err
}

func (s *Store) selectTaken(b *strings.Builder, token int64, list string) {
	fmt.Fprintf(b, "SELECT %s, payload FROM %s WHERE id IN (%s) AND token = %d AND status = 'running'", jobColumns, s.t.jobs, list, token)
}

func (s *Store) readTaken(c *conn, req store.ClaimRequest, token int64, text string, args ...any) ([]*job.Job, error) {
	var jobs []*job.Job
	err := c.query(func(r row) error {
		j := s.scanJob(r, true)
		j.Token = token
		if !slices.ContainsFunc(req.Wants, func(w store.Want) bool { return w.Queue == j.Queue }) {
			// Trailing spaces don't count in the collation of older servers: the row
			// was found by the name without them.
			j.Queue = strings.TrimRight(j.Queue, " ")
		}
		jobs = append(jobs, j)
		return nil
	}, text, args...)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(jobs, func(a, b *job.Job) int {
		return cmp.Or(b.Priority-a.Priority, a.AvailableAt.Compare(b.AvailableAt), cmp.Compare(a.ID, b.ID))
	})
	return jobs, nil
}

// recoverClaim finds out what became of a claim whose COMMIT got no answer. It
// writes the claim's lease itself: the unique token makes it wait for the lost
// transaction if that is still under way. If the row is there already, the claim
// has happened; if not, it never can happen any more, and the empty lease is left to the reaper.
func (s *Store) recoverClaim(ctx context.Context, req store.ClaimRequest, token int64, picked []candidate, lost error) ([]*job.Job, error) {
	s.meter.Uncertain.Add(1)
	ctx = context.WithoutCancel(ctx)
	var jobs []*job.Job
	err := s.do(ctx, "look up a claim without an answer", s.db, func(c *conn) error {
		_, err := c.exec(fmt.Sprintf("INSERT INTO %s (token, owner, expires_at, job_ids) VALUES (%d, %d, NOW(3), '')", s.t.leases, token, req.Owner))
		if kindOf(codeOf(err)) != store.ErrDuplicate { //nolint:errorlint // kindOf returns the sentinel itself
			return errors.Join(lost, err)
		}
		var b strings.Builder
		s.selectTaken(&b, token, idList(idsOf(picked)))
		jobs, err = s.readTaken(c, req, token, b.String())
		return err
	})
	return jobs, err
}

func idsOf(list []candidate) []int64 {
	ids := make([]int64, len(list))
	for i := range list {
		ids[i] = list[i].id
	}
	slices.Sort(ids)
	return ids
}
