package mysql

import (
	"database/sql"
	"fmt"
	"os"
	"testing"
	"time"

	driversql "github.com/go-sql-driver/mysql"
	"go.uber.org/goleak"

	"queued/internal/store"
	"queued/internal/store/storetest"
	"queued/test/servers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMySQL97(t *testing.T) {
	runSuite(t, servers.MySQL97, storetest.Driver{NoPad: true, ChecksJSON: true})
}
func TestMySQL56(t *testing.T) { runSuite(t, servers.MySQL56, storetest.Driver{}) }
func TestMariaDB1011(t *testing.T) {
	runSuite(t, servers.MariaDB1011, storetest.Driver{NoPad: true, ChecksJSON: true})
}

func TestMariaDB105(t *testing.T) {
	runSuite(t, servers.MariaDB105, storetest.Driver{NoPad: true, ChecksJSON: true})
}

// runSuite runs the conformance suite on one server.
func runSuite(t *testing.T, name servers.Name, d storetest.Driver) {
	d.Name = string(name)
	d.Open = func(tb testing.TB) storetest.Database {
		tb.Helper()
		dsn := servers.Database(tb, servers.Shared(tb, name))
		cfg, err := driversql.ParseDSN(dsn)
		if err != nil {
			tb.Fatal(err)
		}
		cfg.Params = map[string]string{"time_zone": "'+00:00'"}
		connector, err := driversql.NewConnector(cfg)
		if err != nil {
			tb.Fatal(err)
		}
		db := sql.OpenDB(connector)
		tb.Cleanup(func() {
			if err := db.Close(); err != nil {
				tb.Errorf("close: %v", err)
			}
		})
		return storetest.Database{
			Dialect: "mysql",
			SQL:     db,
			Store: func(now time.Time) (store.Store, error) {
				o := Options{DSN: dsn, Claim: os.Getenv("QUEUED_TEST_CLAIM")}
				if !now.IsZero() {
					o.InitSQL = fmt.Sprintf("SET SESSION timestamp = %d.%06d; ", now.Unix(), now.Nanosecond()/1000)
				}
				return Open(o)
			},
		}
	}
	storetest.Run(t, d)
}
