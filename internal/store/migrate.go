package store

import (
	"context"
	"time"
)

// Migrator brings the schema to the version this binary needs.
type Migrator interface {
	// MigrateStatus lists all migrations this binary knows and those that the
	// database has beyond them, by version. It works on an empty database.
	MigrateStatus(ctx context.Context) ([]Migration, error)
	// MigrateUp applies what is missing up to version target (0: all). One process at a
	// time migrates; the others wait for it until ctx ends and then find nothing to do. A migration
	// that was cut off is taken up where it stopped. progress may be nil.
	MigrateUp(ctx context.Context, target int, progress func(Migration)) error
	// MigrateDown undoes the newest migrations down to version target, which
	// stays. It destroys the data in what it drops.
	MigrateDown(ctx context.Context, target int, progress func(Migration)) error
	// MigratePrint returns the SQL that MigrateUp would run on an empty database.
	MigratePrint(ctx context.Context) (string, error)
	// CheckSchema returns nil when the schema is the one this binary needs, or a
	// SchemaError.
	CheckSchema(ctx context.Context) error
}

// Migration is one step of the schema. The same number means the same thing in
// every dialect.
type Migration struct {
	Version   int        `json:"version"`
	Name      string     `json:"name"`
	AppliedAt *time.Time `json:"applied_at,omitempty"`
	Unknown   bool       `json:"unknown,omitempty"` // applied by a newer binary
}
