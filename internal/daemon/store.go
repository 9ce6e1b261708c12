package daemon

import (
	"fmt"
	"os"
	"path/filepath"

	"go.uber.org/zap"

	"queued/internal/config"
	"queued/internal/store"
	"queued/internal/store/mysql"
	"queued/internal/store/sqlite"
)

// OpenStore opens the configured database. A server is not connected to yet. The
// embedded database's file and directory are made if need be, for this user only.
func OpenStore(c *config.Config, log *zap.Logger) (store.Bencher, error) {
	db := &c.Database
	if db.Server() {
		return mysql.Open(mysql.Options{
			DSN: db.DSN.Reveal(), Host: db.Host, Port: db.Port, Socket: db.Socket,
			User: db.User, Password: db.Password.Reveal(), Database: db.Name,
			TLS: db.TLS.Mode, TLSCA: db.TLS.CA, TLSCert: db.TLS.Cert, TLSKey: db.TLS.Key,
			Prefix: db.TablePrefix, Claim: db.Claim, MaxConns: db.MaxConnections, OpTimeout: db.Timeout,
			PayloadLimit: int(c.PayloadLimit), Logger: log,
		})
	}
	if err := os.MkdirAll(filepath.Dir(db.Path), 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of the embedded database: %w", err)
	}
	return sqlite.Open(db.Path, sqlite.Options{OpTimeout: db.Timeout, PayloadLimit: int(c.PayloadLimit)})
}
