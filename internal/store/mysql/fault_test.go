package mysql

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	driversql "github.com/go-sql-driver/mysql"

	"queued/internal/store"
	"queued/job"
	"queued/test/faultproxy"
	"queued/test/servers"
)

// faulty is a store that reaches its server through a proxy, and one that
// reaches the same tables directly.
type faulty struct {
	*Store
	direct *Store
	proxy  *faultproxy.Proxy
}

// eachFaulty runs fn on every server.
func eachFaulty(t *testing.T, fn func(t *testing.T, f faulty)) {
	for _, name := range servers.All {
		t.Run(string(name), func(t *testing.T) {
			t.Parallel()
			dsn := servers.Database(t, servers.Shared(t, name))
			cfg, err := driversql.ParseDSN(dsn)
			if err != nil {
				t.Fatal(err)
			}
			f := faulty{direct: openOn(t, dsn, nil), proxy: faultproxy.Start(t, cfg.Addr)}
			cfg.Addr = f.proxy.Addr()
			f.Store = openOn(t, cfg.FormatDSN(), func(o *Options) { o.OpTimeout = 2 * time.Second })
			fn(t, f)
		})
	}
}

func (f *faulty) inject(r faultproxy.Rule) *faultproxy.Fault { return f.proxy.Inject(r) }

func claim(t *testing.T, s *Store, limit int) (store.Claimed, error) {
	t.Helper()
	return s.Claim(t.Context(), store.ClaimRequest{Owner: 7, Lease: time.Minute, Wants: []store.Want{{Queue: job.DefaultQueue, Limit: limit}}})
}

func mustClaim(t *testing.T, s *Store, want int) store.Claimed {
	t.Helper()
	got, err := claim(t, s, max(want, 1))
	if err != nil || len(got.Jobs) != want {
		t.Fatalf("claim: got %d jobs, %v, want %d", len(got.Jobs), err, want)
	}
	return got
}

// rows lists the jobs as "id status attempts", in id order.
func rows(t *testing.T, s *Store) string {
	t.Helper()
	var list []string
	err := s.do(t.Context(), "list", s.db, func(c *conn) error {
		list = nil
		return c.query(func(r row) error {
			list = append(list, fmt.Sprintf("%s %d", r.str(0), r.int(1)))
			return nil
		}, "SELECT status, attempts FROM jobs ORDER BY id")
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(list, ", ")
}

func count(t *testing.T, s *Store, text string) (n int64) {
	t.Helper()
	err := s.do(t.Context(), "count", s.db, func(c *conn) error {
		return c.query(func(r row) error { n = r.int(0); return nil }, text)
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func equal[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

const isTake = "INSERT INTO `leases`"

func TestClaim_WhoseCommitDeadlocksIsRepeatedWholeAndCountedOnce(t *testing.T) {
	t.Parallel()
	eachFaulty(t, func(t *testing.T, f faulty) {
		fill(t, f.direct, 3, nil)
		fault := f.inject(faultproxy.Rule{Contains: isTake, Times: 2, Do: faultproxy.SplitError(-1, 1213, "40001", "deadlock")})
		got := mustClaim(t, f.Store, 3)
		equal(t, "faults met", fault.Hits(), 2)
		for _, j := range got.Jobs {
			equal(t, "attempt of a claimed job", j.Attempt, 1)
		}
		equal(t, "rows", rows(t, f.direct), "running 1, running 1, running 1")
		equal(t, "leases", count(t, f.direct, "SELECT COUNT(*) FROM leases"), 1)
		equal(t, "deadlocks metered", f.meter.Deadlocks.Load(), 2)
	})
}

func TestClaim_ThatKeepsDeadlockingIsNotChargedToTheJob(t *testing.T) {
	t.Parallel()
	eachFaulty(t, func(t *testing.T, f faulty) {
		fill(t, f.direct, 1, nil)
		for _, code := range []uint16{1213, 1205} {
			fault := f.inject(faultproxy.Rule{Contains: isTake, Do: faultproxy.SplitError(2, code, "", "conflict")})
			if _, err := claim(t, f.Store, 1); !errors.Is(err, store.ErrConflict) {
				t.Errorf("claim: got %v, want ErrConflict", err)
			}
			equal(t, "tries", fault.Hits(), maxRepeats)
			fault.Release()
			equal(t, "rows", rows(t, f.direct), "ready 0")
		}
		mustClaim(t, f.Store, 1)
	})
}

func TestClaim_WhoseAnswerIsLostAfterTheCommitIsKept(t *testing.T) {
	t.Parallel()
	eachFaulty(t, func(t *testing.T, f faulty) {
		fill(t, f.direct, 3, nil)
		f.inject(faultproxy.Rule{Contains: isTake, Times: 1, When: faultproxy.After, Do: faultproxy.Cut})
		got := mustClaim(t, f.Store, 3)
		equal(t, "rows", rows(t, f.direct), "running 1, running 1, running 1")
		equal(t, "commits looked up", f.meter.Uncertain.Load(), 1)
		if lost, err := f.Renew(t.Context(), 7, time.Minute, []int64{got.Token}); err != nil || len(lost) > 0 {
			t.Errorf("renew: got %v lost, %v, want the lease to be there", lost, err)
		}
	})
}

func TestClaim_CutBeforeTheCommitLeavesJobsReady(t *testing.T) {
	t.Parallel()
	eachFaulty(t, func(t *testing.T, f faulty) {
		fill(t, f.direct, 2, nil)
		f.inject(faultproxy.Rule{Contains: isTake, Times: 1, When: faultproxy.Before, Do: faultproxy.Cut})
		if _, err := claim(t, f.Store, 2); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("claim: got %v, want ErrUnavailable", err)
		}
		equal(t, "rows", rows(t, f.direct), "ready 0, ready 0")
		mustClaim(t, f.Store, 2)
	})
}

// The transaction that got no answer is still open on the server when the store
// asks: its lease decides.
func TestClaim_StillUnderWayWhenItsAnswerIsLostIsDecidedOnce(t *testing.T) {
	t.Parallel()
	eachFaulty(t, func(t *testing.T, f faulty) {
		fill(t, f.direct, 2, nil)
		hang := f.inject(faultproxy.Rule{Contains: isTake, Times: 1, When: faultproxy.Before, Do: faultproxy.Hang})
		_, err := claim(t, f.Store, 2)
		if !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("claim: got %v, want ErrUnavailable", err)
		}
		hang.Release()
		// Whatever became of the late statement, its token is taken: it must fail.
		got := mustClaim(t, f.Store, 2)
		for _, j := range got.Jobs {
			equal(t, "attempt", j.Attempt, 1)
		}
	})
}

func finishAll(got store.Claimed, decide func(i int, j *job.Job) job.Write) store.Finish {
	f := store.Finish{Settled: []int64{got.Token}, Owner: 7}
	for i, j := range got.Jobs {
		f.Writes = append(f.Writes, decide(i, j))
	}
	return f
}

// outcome makes each kind of write in turn.
func outcome(i int, j *job.Job) job.Write {
	p := job.Policy{MaxAttempts: 5, Timeout: time.Minute, Backoff: job.Backoff{Base: time.Hour, Cap: time.Hour}}
	var err error
	switch i % 5 {
	case 1:
		err = errors.New("failed")
	case 2:
		err = job.Permanent(errors.New("hopeless"))
	case 3:
		err = job.Snooze(time.Hour)
	case 4:
		return job.Release(j)
	}
	w, _ := job.Decide(j, "result", err, nil, p, job.RandomJitter)
	return w
}

func allDoneOutcome(_ int, j *job.Job) job.Write {
	w, _ := job.Decide(j, "", nil, nil, job.Policy{}, nil)
	return w
}

func checkOutcomes(t *testing.T, f faulty, fates []store.Fate) {
	t.Helper()
	for i, fate := range fates {
		equal(t, fmt.Sprintf("fate %d", i), fate, store.Recorded)
	}
	equal(t, "rows", rows(t, f.direct), "done 1, ready 1, ready 0, ready 0")
	equal(t, "dead letters", count(t, f.direct, "SELECT COUNT(*) FROM dead_jobs"), 1)
	equal(t, "error rows", count(t, f.direct, "SELECT COUNT(*) FROM job_errors"), 2)
	equal(t, "leases", count(t, f.direct, "SELECT COUNT(*) FROM leases"), 0)
}

func TestFinish_DeadlockOrLockTimeoutRepeatsTheStatementsOnly(t *testing.T) {
	t.Parallel()
	eachFaulty(t, func(t *testing.T, f faulty) {
		for _, code := range []uint16{1213, 1205} {
			if _, err := f.direct.db.ExecContext(t.Context(), "DELETE FROM jobs"); err != nil {
				t.Fatal(err)
			}
			fill(t, f.direct, 2, nil)
			got := mustClaim(t, f.Store, 2)
			fault := f.inject(faultproxy.Rule{Contains: "SET status = 'done'", Times: 3, Do: faultproxy.SplitError(-1, code, "40001", "conflict")})
			fates, err := f.Finish(t.Context(), finishAll(got, allDoneOutcome))
			if err != nil || fates[0] != store.Recorded || fates[1] != store.Recorded {
				t.Errorf("finish after %d: got %v, %v, want both recorded", code, fates, err)
			}
			equal(t, "faults met", fault.Hits(), 3)
			equal(t, "rows", rows(t, f.direct), "done 1, done 1")
		}
	})
}

func TestFinish_RepeatedAfterALostAnswerIsRecordedOnce(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		rule faultproxy.Rule
	}{
		{"commit answered late", faultproxy.Rule{Contains: "COMMIT", Times: 1, When: faultproxy.After, Do: faultproxy.Cut}},
		{"commit not executed", faultproxy.Rule{Contains: "COMMIT", Times: 1, When: faultproxy.Before, Do: faultproxy.Cut}},
		{"cut in the middle", faultproxy.Rule{Contains: "INSERT INTO `dead_jobs`", Times: 1, When: faultproxy.After, Do: faultproxy.Cut}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			eachFaulty(t, func(t *testing.T, f faulty) {
				fill(t, f.direct, 5, nil)
				fin := finishAll(mustClaim(t, f.Store, 5), outcome)
				f.inject(tc.rule)
				if _, err := f.Finish(t.Context(), fin); !errors.Is(err, store.ErrUnavailable) {
					t.Fatalf("finish: got %v, want ErrUnavailable", err)
				}
				for range 2 {
					fates, err := f.Finish(t.Context(), fin)
					if err != nil {
						t.Fatalf("finish again: %v", err)
					}
					checkOutcomes(t, f, fates)
				}
			})
		})
	}
}

func TestFinish_DoneRepeatedAfterALostAnswerIsRecorded(t *testing.T) {
	t.Parallel()
	eachFaulty(t, func(t *testing.T, f faulty) {
		fill(t, f.direct, 2, nil)
		fin := finishAll(mustClaim(t, f.Store, 2), allDoneOutcome)
		f.inject(faultproxy.Rule{Contains: "COMMIT", Times: 1, When: faultproxy.After, Do: faultproxy.Error(2013, "", "lost connection")})
		if _, err := f.Finish(t.Context(), fin); !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("finish: got %v, want ErrUnavailable", err)
		}
		fates, err := f.Finish(t.Context(), fin)
		if err != nil || fates[0] != store.Recorded || fates[1] != store.Recorded {
			t.Errorf("finish again: got %v, %v, want both recorded", fates, err)
		}
	})
}

// A success is never turned into a retry by what is only to be kept for reading.
func TestFinish_RefusedResultIsDroppedAndTheJobDone(t *testing.T) {
	t.Parallel()
	eachFaulty(t, func(t *testing.T, f faulty) {
		fill(t, f.direct, 2, nil)
		got := mustClaim(t, f.Store, 2)
		for _, code := range []uint16{1366, 1406, 1153} {
			f.inject(faultproxy.Rule{Contains: "result = CASE", Do: faultproxy.SplitError(2, code, "22001", "no")})
		}
		fates, err := f.Finish(t.Context(), finishAll(got, func(_ int, j *job.Job) job.Write {
			w, _ := job.Decide(j, "👨‍👩‍👧", nil, nil, job.Policy{}, nil)
			return w
		}))
		if err != nil || fates[0] != store.Recorded || fates[1] != store.Recorded {
			t.Errorf("finish: got %v, %v, want both recorded", fates, err)
		}
		equal(t, "rows", rows(t, f.direct), "done 1, done 1")
	})
}

func TestFinish_DeadLetterThatIsRefusedKeepsTheJobAndIsWrittenOnceLater(t *testing.T) {
	t.Parallel()
	eachFaulty(t, func(t *testing.T, f faulty) {
		for i, code := range []uint16{1406, 1062, 1114, 1021, 1142, 1146} {
			fill(t, f.direct, 2, nil)
			got := mustClaim(t, f.Store, 2)
			refuse := f.inject(faultproxy.Rule{Contains: "INSERT INTO `dead_jobs`", Do: faultproxy.Error(code, "", "no")})
			fates, err := f.Finish(t.Context(), finishAll(got, func(i int, j *job.Job) job.Write {
				if i == 0 {
					return job.Refuse(j, job.ReasonPermanent, "hopeless")
				}
				return allDoneOutcome(i, j)
			}))
			if err != nil || fates[0] != store.NotBuried || fates[1] != store.Recorded {
				t.Errorf("finish with %d: got %v, %v, want not buried and recorded", code, fates, err)
			}
			refuse.Release()
			row, err := f.direct.GetJob(t.Context(), got.Jobs[0].ID)
			if err != nil || row.State != job.Ready || row.MaxAttempts != 1 || time.Until(row.AvailableAt) < 30*time.Second {
				t.Errorf("job with %d: got %+v, %v, want it ready later and out of attempts", code, row, err)
			}
			if err := f.direct.RetryJob(t.Context(), got.Jobs[0].ID); err != nil {
				t.Fatal(err)
			}
			again := mustClaim(t, f.Store, 1)
			fates, err = f.Finish(t.Context(), finishAll(again, func(_ int, j *job.Job) job.Write {
				return job.Refuse(j, job.ReasonPermanent, "hopeless")
			}))
			if err != nil || fates[0] != store.Recorded {
				t.Errorf("finish once it works again: got %v, %v, want it recorded", fates, err)
			}
			equal(t, "dead letters", count(t, f.direct, "SELECT COUNT(*) FROM dead_jobs"), int64(i+1))
		}
	})
}

func TestStore_ErrorsThatPassAreUnavailableAndTheConnectionIsNotUsedAgain(t *testing.T) {
	t.Parallel()
	eachFaulty(t, func(t *testing.T, f faulty) {
		fill(t, f.direct, 1, nil)
		for _, code := range []uint16{1290, 1792, 1836, 2006, 2013, 1053, 1040, 1317, 1047} {
			before := connectionID(t, f.Store)
			fault := f.inject(faultproxy.Rule{Contains: isTake, Times: 1, Do: faultproxy.SplitError(2, code, "", "no")})
			// The server may still be undoing what the last connection left behind:
			// its row is skipped until then.
			var err error
			for deadline := time.Now().Add(10 * time.Second); fault.Hits() == 0 && time.Now().Before(deadline); {
				_, err = claim(t, f.Store, 1)
			}
			if !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("claim answered with %d: got %v, want ErrUnavailable", code, err)
			}
			if after := connectionID(t, f.Store); after == before {
				t.Errorf("claim answered with %d: connection %d is used again", code, after)
			}
			equal(t, "rows", rows(t, f.direct), "ready 0")
		}
	})
}

func connectionID(t *testing.T, s *Store) int64 {
	return count(t, s, "SELECT CONNECTION_ID()")
}

func TestStore_SilentServerEndsACallWithinItsTimeout(t *testing.T) {
	t.Parallel()
	eachFaulty(t, func(t *testing.T, f faulty) {
		fill(t, f.direct, 1, nil)
		f.proxy.Blackhole(true)
		for range 2 { // on an open connection, then on a new one
			_, err := claim(t, f.Store, 1)
			if !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("claim: got %v, want ErrUnavailable", err)
			}
		}
		f.proxy.CutAll()
		f.proxy.Blackhole(false)
		mustClaim(t, f.Store, 1)
	})
}

func TestStore_RefusedLoginsPass(t *testing.T) {
	t.Parallel()
	eachFaulty(t, func(t *testing.T, f faulty) {
		fill(t, f.direct, 1, nil)
		for code, want := range map[uint16]error{1040: store.ErrUnavailable, 1053: store.ErrUnavailable, 1045: store.ErrDenied} {
			f.proxy.CutAll()
			f.proxy.RefuseNew(code)
			if _, err := claim(t, f.Store, 1); !errors.Is(err, want) {
				t.Errorf("claim refused with %d: got %v, want %v", code, err, want)
			}
		}
		f.proxy.RefuseNew(0)
		mustClaim(t, f.Store, 1)
	})
}

func TestReap_WhoseCommitIsLostHappensOnce(t *testing.T) {
	t.Parallel()
	eachFaulty(t, func(t *testing.T, f faulty) {
		fill(t, f.direct, 2, nil)
		got, err := f.Claim(t.Context(), store.ClaimRequest{Owner: 7, Lease: time.Millisecond, Wants: []store.Want{{Queue: job.DefaultQueue, Limit: 2}}})
		if err != nil || len(got.Jobs) != 2 {
			t.Fatalf("claim: got %d jobs, %v", len(got.Jobs), err)
		}
		var leases []store.Lease
		for len(leases) == 0 {
			if leases, err = f.Expired(t.Context(), 0, 10); err != nil {
				t.Fatal(err)
			}
		}
		p := job.Policy{MaxAttempts: 1}
		writes := []job.Write{
			job.DecideLost(leases[0].Jobs[0], p, job.RandomJitter),
			job.DecideLost(leases[0].Jobs[1], job.Policy{MaxAttempts: 2, Backoff: job.Backoff{Base: time.Hour, Cap: time.Hour}}, job.RandomJitter),
		}
		f.inject(faultproxy.Rule{Contains: "COMMIT", Times: 1, When: faultproxy.After, Do: faultproxy.Cut})
		if _, err := f.Reap(t.Context(), got.Token, 0, writes); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("reap: got %v, want ErrUnavailable", err)
		}
		if _, err := f.Reap(t.Context(), got.Token, 0, writes); !errors.Is(err, job.ErrLeaseLost) {
			t.Errorf("reap again: got %v, want ErrLeaseLost", err)
		}
		equal(t, "rows", rows(t, f.direct), "ready 1")
		equal(t, "dead letters", count(t, f.direct, "SELECT COUNT(*) FROM dead_jobs"), 1)
		equal(t, "error rows", count(t, f.direct, "SELECT COUNT(*) FROM job_errors"), 2)
	})
}
