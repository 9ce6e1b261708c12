package daemon

import (
	"database/sql"
	"testing"

	"queued/internal/config"
	"queued/internal/worker"
)

// exec runs a statement on the embedded database, behind the store's back.
func exec(t *testing.T, cfg *config.Config, query string) {
	t.Helper()
	db, err := sql.Open("sqlite", cfg.Database.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), query); err != nil {
		t.Fatal(err)
	}
}

// stuckPool is a pool whose loops never turn: it is not run.
func stuckPool(t *testing.T, cfg *config.Config) *worker.Pool {
	t.Helper()
	r, err := Registry(cfg, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := worker.New(worker.Config{Lanes: []worker.Lane{{Queue: "default", Workers: 1}}, Handlers: r, Owner: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
