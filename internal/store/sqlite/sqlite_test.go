package sqlite_test

import (
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"queued/internal/store"
	"queued/internal/store/sqlite"
	"queued/internal/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var driver = storetest.Driver{
	Name:       "sqlite",
	NoPad:      true,
	ChecksJSON: true,
	Open: func(tb testing.TB) storetest.Database {
		tb.Helper()
		path := filepath.Join(tb.TempDir(), "queued.db")
		db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(60000)")
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() {
			if err := db.Close(); err != nil {
				tb.Error(err)
			}
		})
		return storetest.Database{Dialect: "sqlite", SQL: db, Store: func(now time.Time) (store.Store, error) {
			o := sqlite.Options{OpTimeout: time.Minute} // the race detector and a busy machine make it slow
			if !now.IsZero() {
				o.Now = func() time.Time { return now }
			}
			return sqlite.Open(path, o)
		}}
	},
}

func TestStore(t *testing.T) { storetest.Run(t, driver) }

func BenchmarkDrain(b *testing.B) { storetest.BenchmarkDrain(b, driver) }
