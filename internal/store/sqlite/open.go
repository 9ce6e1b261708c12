// Package sqlite keeps jobs in one SQLite file, for installations without a
// database server.
//
// Every writing operation is one BEGIN IMMEDIATE transaction: it holds SQLite's
// one write lock from its start, so nothing in it can fail for having read before
// the lock was there. Reads go through a pool of their own and never wait for
// writers (WAL). Several processes may use the file at once, foreign producers
// included. The clock is the host's.
package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"queued/internal/store"
)

// Options are what can be set; the zero value is good.
type Options struct {
	OpTimeout    time.Duration    // after which a call gives up, default 10s
	PayloadLimit int              // bytes, default job.MaxPayloadBytes
	Now          func() time.Time // the store's clock, default time.Now
}

// Store is a store.Store in an SQLite file.
type Store struct {
	path  string
	opts  Options
	db    *pool // writes, one connection
	lease *pool // Leaser and Registrar, so that a heartbeat waits for no one but the lock's holder
	reads *pool
	meter store.Meter

	// turn is held while one of this process's connections writes. SQLite's own
	// lock makes waiters poll, and whoever polls while others take turns starves;
	// a channel serves its waiters in order.
	turn   chan struct{}
	breath breath // guarded by turn
	// checkpointed is when the WAL was last cut short, guarded by turn.
	checkpointed time.Time
}

var _ store.Store = (*Store)(nil)

const (
	readConns = 4
	// busyTimeout is how long one try waits for another process's lock. SQLite polls
	// ever more slowly within it; a short one, repeated, keeps polling briskly.
	busyTimeout = 100 * time.Millisecond
	// The WAL is copied back into the file when it has this many pages (16 MiB). From
	// twice that size on it is cut short, see cutWAL.
	checkpointPages = 4096
	pageSize        = 4096
	readersWait     = 250 * time.Millisecond
	cacheKiB        = 4 << 10 // of one connection
)

// Open opens the file, which is created (0600) if need be; its directory must
// exist. The schema is the Migrator's business.
func Open(path string, o Options) (*Store, error) {
	if o.OpTimeout <= 0 {
		o.OpTimeout = 10 * time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open sqlite store: %w", err)
	}
	if err := create(abs); err != nil {
		return nil, fmt.Errorf("open sqlite store %s: %w", abs, err)
	}
	s := &Store{path: abs, opts: o, turn: make(chan struct{}, 1)}
	for _, p := range []struct {
		pool  **pool
		conns int
	}{{&s.db, 1}, {&s.lease, 2}, {&s.reads, readConns}} {
		if *p.pool, err = newPool(abs, p.conns); err != nil {
			return nil, fmt.Errorf("open sqlite store %s: %w", abs, err)
		}
	}
	return s, nil
}

// create makes the file if it isn't there: SQLite itself would make it readable
// for everybody, and gives the files beside it the mode that this one has.
func create(path string) error {
	dir := filepath.Dir(path)
	switch info, err := os.Stat(dir); {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: there is no directory %s: create it, writable for the user that queued runs as", store.ErrUnavailable, dir)
	case err != nil:
		return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	case !info.IsDir():
		return fmt.Errorf("%w: %s is not a directory", store.ErrUnavailable, dir)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: %w", store.ErrDenied, err)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	}
	return f.Close()
}

// dsn is the one place that says how connections are set up.
func dsn(path string) string {
	q := url.Values{
		"_txlock": {"immediate"},
		"_pragma": {
			fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()),
			"journal_mode(WAL)",
			"synchronous(FULL)", // a commit that was answered survives a power cut
			fmt.Sprintf("wal_autocheckpoint(%d)", checkpointPages),
			fmt.Sprintf("journal_size_limit(%d)", checkpointPages*pageSize),
			fmt.Sprintf("cache_size(-%d)", cacheKiB),
			"temp_store(MEMORY)",
		},
	}
	return (&url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: q.Encode()}).String()
}

// Close ends all connections; the last process to do so copies the WAL back.
func (s *Store) Close() error {
	return errors.Join(s.reads.Close(), s.lease.Close(), s.db.Close())
}

// Meter counts what the store did.
func (s *Store) Meter() *store.Meter { return &s.meter }

// Ping takes the write lock for a moment.
func (s *Store) Ping(ctx context.Context) error {
	return s.write(ctx, "ping the database", s.lease, func(*tx) error { return nil })
}

// Describe says what was found out.
func (s *Store) Describe(ctx context.Context) (store.Description, error) {
	d := store.Description{Driver: "sqlite", Where: s.path, Claim: "single_writer", Why: "SQLite has one writer at a time"}
	err := s.read(ctx, "look at the database", s.reads, func(t *tx) error {
		var version string
		if err := t.row("SELECT sqlite_version()", nil, &version); err != nil {
			return err
		}
		d.Server = "SQLite " + version
		return nil
	})
	return d, err
}
