package chaos

import (
	"context"
	"strings"
	"testing"
	"time"

	"queued/test/servers"
)

// eachOwnServer runs fn on a durable server of its own with SKIP LOCKED and on one with CAS.
func eachOwnServer(t *testing.T, fn func(t *testing.T, p *place, srv *servers.Server)) {
	for _, n := range []servers.Name{servers.MySQL97, servers.MySQL56} {
		t.Run(string(n), func(t *testing.T) {
			srv := servers.Start(t, n, servers.Options{Durable: true})
			fn(t, onServer(t, srv.DSN()), srv)
		})
	}
}

// tries is count for a server that may be away; -1 then.
func (p *place) tries(text string) (n int) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := p.db.QueryRowContext(ctx, text).Scan(&n); err != nil {
		return -1
	}
	return n
}

func (p *place) finished() int { return p.tries("SELECT COUNT(*) FROM finished") }

func TestServerKilledUnderLoad_EverythingEndsDoneAndNoDaemonExits(t *testing.T) {
	eachOwnServer(t, func(t *testing.T, p *place, srv *servers.Server) {
		const n = 2000
		p.enqueue(t, "work", n)
		a, b := p.start(t, quick), p.start(t, quick)
		for _, share := range []int{10, 3} {
			eventually(t, time.Minute, "some jobs done", func() bool { return p.finished() >= n/share })
			srv.Kill()
			srv.Restart()
		}
		eventually(t, 3*time.Minute, "all jobs done", func() bool { return p.finished() == n })
		a.alive(t)
		b.alive(t)
		a.stop(t)
		b.stop(t)
		p.reconcile(t, n)
	})
}

// recovers runs jobs through a time in which the server is of no use. The daemon
// must say that it waits, and go on by itself within seconds.
func recovers(t *testing.T, p *place, bad, good func()) {
	t.Helper()
	const n = 200
	s := quick
	s.script = "sleep 0.05"
	p.enqueue(t, "work", n)
	d := p.start(t, s)
	eventually(t, time.Minute, "some jobs done", func() bool { return p.finished() >= n/10 })
	bad()
	eventually(t, 30*time.Second, "the daemon says what it waits for", func() bool {
		return strings.Contains(d.log.String(), "waiting for the database")
	})
	good()
	before := max(p.finished(), 0)
	eventually(t, 15*time.Second, "jobs are done again", func() bool { return p.finished() > before || p.finished() == n })
	eventually(t, time.Minute, "all jobs done", func() bool { return p.finished() == n })
	d.alive(t)
	d.stop(t)
	p.reconcile(t, n)
}

func TestServerRestarted_TheDaemonRecovers(t *testing.T) {
	eachOwnServer(t, func(t *testing.T, p *place, srv *servers.Server) {
		recovers(t, p, srv.Stop, srv.Restart)
	})
}

// Failed over: the server is still there, but takes no writes any more.
func TestServerReadOnly_TheDaemonRecovers(t *testing.T) {
	eachOwnServer(t, func(t *testing.T, p *place, _ *servers.Server) {
		recovers(t, p,
			func() { p.exec(t, "SET GLOBAL read_only = 1") },
			func() { p.exec(t, "SET GLOBAL read_only = 0") })
	})
}

// Connections hang without an answer.
func TestServerSilent_TheDaemonRecovers(t *testing.T) {
	eachOwnServer(t, func(t *testing.T, p *place, srv *servers.Server) {
		recovers(t, p, srv.Pause, srv.Resume)
	})
}

// A database that is away at the start is waited for.
func TestServerAwayAtStart_IsWaitedFor(t *testing.T) {
	eachOwnServer(t, func(t *testing.T, p *place, srv *servers.Server) {
		p.enqueue(t, "work", 10)
		srv.Stop()
		d := p.start(t, quick)
		eventually(t, 30*time.Second, "the daemon says what it waits for", func() bool {
			return strings.Contains(d.log.String(), "waiting for the database")
		})
		d.alive(t)
		srv.Restart()
		eventually(t, 30*time.Second, "all jobs done", func() bool { return p.finished() == 10 })
		d.stop(t)
		p.reconcile(t, 10)
	})
}
