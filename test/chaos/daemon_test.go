package chaos

import (
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"queued/internal/store"
	"queued/job"
)

// The first proof: kill -9 of the real binary at random moments, round after
// round, two daemons at a time, and every job is done once in the end.
func TestKilledDaemons_LoseNothingAndFinishNothingTwice(t *testing.T) {
	eachPlace(t, func(t *testing.T, p *place) {
		const n, rounds = 2000, 6
		p.enqueue(t, "work", n)
		pair := []*daemon{p.start(t, quick), p.start(t, quick)}
		for range rounds {
			// Any moment will do: it is drawn, not waited for.
			time.Sleep(200*time.Millisecond + rand.N(1500*time.Millisecond))
			i := rand.IntN(2)
			pair[i].kill()
			pair[i] = p.start(t, quick)
		}
		eventually(t, 3*time.Minute, "all jobs done", func() bool {
			return p.count(t, "SELECT COUNT(*) FROM finished") == n
		})
		pair[0].stop(t)
		pair[1].stop(t)
		p.reconcile(t, n)
		if leases := p.count(t, "SELECT COUNT(*) FROM leases"); leases != 0 {
			t.Errorf("got %d leases at the end, want none", leases)
		}
	})
}

// The same at the size at which it can be followed by hand.
func TestKilledHalfWay_TheRestIsDoneByTheNextStart(t *testing.T) {
	eachPlace(t, func(t *testing.T, p *place) {
		const n = 100
		p.enqueue(t, "work", n)
		d := p.start(t, quick)
		eventually(t, time.Minute, "half of the jobs done", func() bool {
			return p.count(t, "SELECT COUNT(*) FROM finished") >= n/2
		})
		d.kill()
		d = p.start(t, quick)
		eventually(t, time.Minute, "all jobs done", func() bool {
			return p.count(t, "SELECT COUNT(*) FROM finished") == n
		})
		d.stop(t)
		p.reconcile(t, n)
	})
}

// The second proof.
func TestSameKeyTwice_IsOneJob(t *testing.T) {
	eachPlace(t, func(t *testing.T, p *place) {
		p.enqueue(t, "work", 1)
		again := func() store.Enqueued {
			got, err := p.store.Enqueue(t.Context(), []job.New{{Kind: "work", Key: "work-0"}})
			if err != nil {
				t.Fatal(err)
			}
			return got[0]
		}
		if e := again(); e.New {
			t.Errorf("enqueued again while ready: got %+v, want it not to be new", e)
		}
		d := p.start(t, quick)
		eventually(t, time.Minute, "the job done", func() bool { return p.count(t, "SELECT COUNT(*) FROM finished") == 1 })
		if e := again(); e.New {
			t.Errorf("enqueued again after it is done: got %+v, want it not to be new", e)
		}
		d.stop(t)
		p.reconcile(t, 1)
	})
}

// The third proof.
func TestKilledWorkerOfALongJob_TheJobReturns(t *testing.T) {
	eachPlace(t, func(t *testing.T, p *place) {
		long := quick
		long.script = "sleep 4"
		p.enqueue(t, "work", 1)
		d := p.start(t, long)
		eventually(t, time.Minute, "the job running", func() bool {
			return p.count(t, "SELECT COUNT(*) FROM jobs WHERE status = 'running'") == 1
		})
		d.kill()
		d = p.start(t, long)
		eventually(t, time.Minute, "the job done", func() bool { return p.count(t, "SELECT COUNT(*) FROM finished") == 1 })
		d.stop(t)
		if a := p.count(t, "SELECT attempts FROM jobs"); a != 2 {
			t.Errorf("got %d attempts, want 2", a)
		}
		if e := p.count(t, "SELECT COUNT(*) FROM job_errors"); e != 1 {
			t.Errorf("got %d recorded errors, want 1: the attempt that was cut off", e)
		}
	})
}

// A long job under a short lease runs once: the lease is renewed.
func TestLongJobUnderAShortLease_RunsOnce(t *testing.T) {
	eachPlace(t, func(t *testing.T, p *place) {
		long := quick
		long.script = "sleep 7" // three leases and a half
		p.enqueue(t, "work", 1)
		a, b := p.start(t, long), p.start(t, long)
		eventually(t, time.Minute, "the job done", func() bool { return p.count(t, "SELECT COUNT(*) FROM finished") == 1 })
		a.stop(t)
		b.stop(t)
		if n := p.count(t, "SELECT attempts FROM jobs"); n != 1 {
			t.Errorf("got %d attempts, want 1", n)
		}
		p.reconcile(t, 1)
	})
}

// A worker that only stalled: stopped past its lease, another one takes the job
// over, then it wakes up and must write nothing.
func TestStalledDaemon_WritesNothingAfterItWakes(t *testing.T) {
	eachPlace(t, func(t *testing.T, p *place) {
		s := quick
		s.script = `[ "$QUEUED_ATTEMPT" = 1 ] && sleep 3 || sleep 6`
		p.enqueue(t, "work", 1)
		a := p.start(t, s)
		eventually(t, time.Minute, "the job running", func() bool {
			return p.count(t, "SELECT COUNT(*) FROM jobs WHERE status = 'running'") == 1
		})
		a.signal(t, syscall.SIGSTOP)
		b := p.start(t, s)
		eventually(t, time.Minute, "the job taken over", func() bool {
			return p.count(t, "SELECT COUNT(*) FROM jobs WHERE status = 'running' AND attempts = 2") == 1
		})
		token := p.count(t, "SELECT token FROM jobs")
		a.signal(t, syscall.SIGCONT)
		eventually(t, 20*time.Second, "the first daemon sees that it lost its lease", func() bool {
			return strings.Contains(a.log.String(), "lease lost")
		})
		if got := p.count(t, "SELECT token FROM jobs WHERE status = 'running' AND attempts = 2"); got != token {
			t.Errorf("the row changed when the stalled daemon woke up: got token %d, want %d", got, token)
		}
		eventually(t, time.Minute, "the job done", func() bool { return p.count(t, "SELECT COUNT(*) FROM finished") == 1 })
		if got := p.count(t, "SELECT token FROM jobs WHERE status = 'done' AND attempts = 2"); got != token {
			t.Errorf("finished under token %d, want the second worker's %d", got, token)
		}
		a.stop(t)
		b.stop(t)
	})
}

// A stop hands back what has not started, with its attempt.
func TestStoppedDaemon_HandsBackWhatItDidNotRun(t *testing.T) {
	eachPlace(t, func(t *testing.T, p *place) {
		s := quick
		s.script = "sleep 0.3"
		const n = 60
		p.enqueue(t, "work", n)
		d := p.start(t, s)
		eventually(t, time.Minute, "some jobs done", func() bool { return p.count(t, "SELECT COUNT(*) FROM finished") >= 10 })
		d.stop(t)
		if running := p.count(t, "SELECT COUNT(*) FROM jobs WHERE status = 'running'"); running != 0 {
			t.Errorf("got %d running jobs after the stop, want none", running)
		}
		if burned := p.count(t, "SELECT COUNT(*) FROM jobs WHERE status = 'ready' AND attempts > 0"); burned != 0 {
			t.Errorf("got %d jobs handed back with an attempt burned, want none", burned)
		}
		d = p.start(t, s)
		eventually(t, time.Minute, "all jobs done", func() bool { return p.count(t, "SELECT COUNT(*) FROM finished") == n })
		d.stop(t)
		p.reconcile(t, n)
	})
}
