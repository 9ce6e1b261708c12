// Package mysql keeps jobs in MySQL (5.6 and later) or MariaDB (10.5 and later).
//
// Each operation takes one connection, sends as few packets as it can (several
// statements a packet) and gives the connection back only when it is known to be
// clean: after any error it is closed, or rolled back when the server said that
// only the statement failed. See docs/store.md for the statements.
package mysql

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	driversql "github.com/go-sql-driver/mysql"
	"go.uber.org/zap"

	"queued/internal/store"
)

// Options say which server and tables to use.
type Options struct {
	// DSN in the driver's form, "user:password@tcp(host:3306)/schema". When it is
	// empty the fields below it are used.
	DSN      string
	Host     string // default 127.0.0.1
	Port     int    // default 3306
	Socket   string // path; instead of Host and Port
	User     string
	Password string
	Database string // the schema with queued's tables

	// TLS: "" or "off", "preferred" (encrypted if the server can, nothing is
	// checked), "required" (encrypted, the certificate is not checked),
	// "verify-ca", "verify-identity".
	TLS     string
	TLSCA   string // file; default: the system's roots
	TLSCert string // file of a client certificate
	TLSKey  string

	Prefix       string        // of the tables' names
	Claim        string        // "auto" (default), "skip_locked" or "cas"
	MaxConns     int           // of the pool; 2 more are used for leases. Default 8
	OpTimeout    time.Duration // after which a call gives up, default 10s
	PayloadLimit int           // bytes, default job.MaxPayloadBytes
	Logger       *zap.Logger

	// InitSQL is run on each new connection, for tests that freeze the server's clock.
	InitSQL string
}

// Store is a store.Store on a MySQL or MariaDB server.
type Store struct {
	opts  Options
	t     tables
	where string
	db    *sql.DB // for everything but leases
	lease *sql.DB // for Leaser, so that a full pool can't starve a heartbeat
	meter store.Meter

	probeMu sync.Mutex
	server  *server // nil until the first successful probe

	marks marks
}

var _ store.Store = (*Store)(nil)

// tables holds the quoted names.
type tables struct {
	jobs, dead, errors, leases, counters, daemons, migrations string
}

var prefixRule = regexp.MustCompile(`^[A-Za-z0-9_]{0,32}$`)

// Open checks o and prepares the pools. It does not connect: a server that is
// away is no error here.
func Open(o Options) (*Store, error) {
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.MaxConns <= 0 {
		o.MaxConns = 8
	}
	if o.OpTimeout <= 0 {
		o.OpTimeout = 10 * time.Second
	}
	if o.Claim == "" {
		o.Claim = claimAuto
	}
	if o.Claim != claimAuto && o.Claim != claimSkipLocked && o.Claim != claimCAS {
		return nil, fmt.Errorf("open mysql store: claim must be auto, skip_locked or cas (got %q)", o.Claim)
	}
	if !prefixRule.MatchString(o.Prefix) {
		return nil, fmt.Errorf("open mysql store: table prefix must be at most 32 letters, digits or _ (got %q)", o.Prefix)
	}
	cfg, err := o.driverConfig()
	if err != nil {
		return nil, fmt.Errorf("open mysql store: %w", err)
	}
	inner, err := driversql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("open mysql store: %w", redact(err, cfg.Passwd))
	}
	s := &Store{opts: o, where: cfg.Addr + "/" + cfg.DBName}
	name := func(t string) string { return "`" + o.Prefix + t + "`" }
	s.t = tables{
		jobs: name("jobs"), dead: name("dead_jobs"), errors: name("job_errors"), leases: name("leases"),
		counters: name("counters"), daemons: name("daemons"), migrations: name("schema_migrations"),
	}
	s.marks.m, s.marks.levels, s.marks.full = map[arm]time.Time{}, map[string]uint16{}, map[string]fullScan{}
	s.marks.spread = 1
	c := &connector{Connector: inner, init: sessionInit + o.InitSQL}
	s.db, s.lease = sql.OpenDB(c), sql.OpenDB(c)
	s.db.SetMaxOpenConns(o.MaxConns)
	s.db.SetMaxIdleConns(o.MaxConns)
	s.lease.SetMaxOpenConns(2)
	s.lease.SetMaxIdleConns(2)
	for _, db := range []*sql.DB{s.db, s.lease} {
		// Shorter than what proxies and wait_timeout allow, and the way back to the
		// right server after a name points elsewhere.
		db.SetConnMaxLifetime(5 * time.Minute)
		db.SetConnMaxIdleTime(time.Minute)
	}
	return s, nil
}

// Close ends all connections.
func (s *Store) Close() error { return errors.Join(s.db.Close(), s.lease.Close()) }

// Meter counts what the store did.
func (s *Store) Meter() *store.Meter { return &s.meter }

func (o *Options) driverConfig() (*driversql.Config, error) {
	cfg := driversql.NewConfig()
	if o.DSN != "" {
		var err error
		if cfg, err = driversql.ParseDSN(o.DSN); err != nil {
			// The driver's error may quote the DSN, password included.
			return nil, errors.New("the DSN is not of the form user:password@tcp(host:port)/schema")
		}
	} else {
		cfg.User, cfg.Passwd, cfg.DBName = o.User, o.Password, o.Database
		cfg.Net, cfg.Addr = "tcp", net.JoinHostPort(orDefault(o.Host, "127.0.0.1"), strconv.Itoa(orPort(o.Port)))
		if o.Socket != "" {
			cfg.Net, cfg.Addr = "unix", o.Socket
		}
	}
	if cfg.DBName == "" {
		return nil, errors.New("no schema is named: add it to the DSN after the last / or set the database name")
	}
	tc, err := o.tlsConfig(cfg.Addr)
	if err != nil {
		return nil, err
	}
	if tc != nil {
		cfg.TLS = tc
	}
	if o.TLS == "preferred" {
		cfg.TLSConfig, cfg.AllowFallbackToPlaintext = "preferred", true
	}
	// Set by us whatever the DSN says: the statements rely on them.
	cfg.ParseTime, cfg.Loc = true, time.UTC
	cfg.InterpolateParams = true // no prepared statements: one round trip, and nothing to run out of
	cfg.MultiStatements = true
	cfg.ClientFoundRows = false
	cfg.Collation = "utf8mb4_general_ci"
	cfg.Params = nil
	cfg.RejectReadOnly = false // mapped in errors.go, which closes the connection as well
	if cfg.Timeout == 0 {
		cfg.Timeout = min(5*time.Second, o.OpTimeout)
	}
	cfg.Logger = zapWarn{o.Logger}
	return cfg, nil
}

func (o *Options) tlsConfig(addr string) (*tls.Config, error) {
	switch o.TLS {
	case "", "off", "preferred":
		return nil, nil
	case "required", "verify-ca", "verify-identity":
	default:
		return nil, fmt.Errorf("tls must be off, preferred, required, verify-ca or verify-identity (got %q)", o.TLS)
	}
	host, _, _ := net.SplitHostPort(addr)
	tc := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	if o.TLSCA != "" {
		pem, err := os.ReadFile(o.TLSCA)
		if err != nil {
			return nil, fmt.Errorf("read tls ca: %w", err)
		}
		tc.RootCAs = x509.NewCertPool()
		if !tc.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read tls ca: %s has no certificate", o.TLSCA)
		}
	}
	if o.TLSCert != "" || o.TLSKey != "" {
		cert, err := tls.LoadX509KeyPair(o.TLSCert, o.TLSKey)
		if err != nil {
			return nil, fmt.Errorf("read tls client certificate: %w", err)
		}
		tc.Certificates = []tls.Certificate{cert}
	}
	switch o.TLS {
	case "required":
		tc.InsecureSkipVerify = true // what "required" is documented to mean, as in MySQL's own clients
	case "verify-ca":
		// Go has no such mode: skip its check and verify the chain, but not the name.
		tc.InsecureSkipVerify = true // verified below
		tc.VerifyConnection = func(cs tls.ConnectionState) error {
			pool := x509.NewCertPool()
			for _, c := range cs.PeerCertificates[1:] {
				pool.AddCert(c)
			}
			_, err := cs.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: tc.RootCAs, Intermediates: pool})
			return err
		}
	}
	return tc, nil
}

func orDefault(s, def string) string {
	if s == "" {
		return def
	}
	return s
}

func orPort(p int) int {
	if p == 0 {
		return 3306
	}
	return p
}

// redact keeps a password out of an error that quotes the configuration.
func redact(err error, password string) error {
	if password == "" || !strings.Contains(err.Error(), password) {
		return err
	}
	return errors.New("the connection settings are not valid")
}

// zapWarn carries the driver's own log lines ("busy buffer", "closing bad idle
// connection") at debug level: what matters of them comes back as an error.
type zapWarn struct{ l *zap.Logger }

func (z zapWarn) Print(v ...any) { z.l.Debug("mysql driver", zap.String("message", fmt.Sprint(v...))) }

// sessionInit pins what the statements rely on. READ COMMITTED: in REPEATABLE READ
// a claim that reaches the end of its range locks the gap that producers
// insert into. UTC: so that TIMESTAMPs come and go as they are.
const sessionInit = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; " +
	"SET SESSION time_zone = '+00:00', sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION', " +
	"innodb_lock_wait_timeout = 5, autocommit = 1, sql_safe_updates = 0; "

// connector runs the session's settings on each new connection.
type connector struct {
	driver.Connector
	init string
}

func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := conn.(driver.ExecerContext).ExecContext(ctx, c.init, nil); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}
