package mysql

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"go.uber.org/zap"

	"queued/internal/store"
	"queued/migrations"
)

// The ways of claiming.
const (
	claimAuto       = "auto"
	claimSkipLocked = "skip_locked"
	claimCAS        = "cas"
)

// server is what was found out about the server.
type server struct {
	version    string // as reported
	mariadb    bool
	number     [3]int
	skipLocked bool // take candidates with SKIP LOCKED
	why        string
	// hasSkipLocked: the server knows the clause, whether it is used or not.
	hasSkipLocked bool
	virtual       bool // jobs.pending follows status by itself
	tablesSeen    bool // virtual is what the table has, not what a new one would get
	collate       string
	json          string
	maxPacket     int64
}

// What a server answers that does not know a clause.
const (
	errSyntax       = 1064
	errNotSupported = 1235
)

var versionRule = regexp.MustCompile(`(\d+)\.(\d+)(?:\.(\d+))?`)

// parseVersion reads what SELECT VERSION() and the handshake say:
// "8.0.36-28", "5.5.5-10.11.6-MariaDB-1", "8.0.mysql_aurora.3.04.0". ok is false when
// there is no number in it.
func parseVersion(text string) (number [3]int, mariadb, ok bool) {
	mariadb = strings.Contains(strings.ToLower(text), "mariadb")
	if mariadb {
		// Put in front by servers before 11.0, for replicas that knew no 10.
		text = strings.TrimPrefix(text, "5.5.5-")
	}
	m := versionRule.FindStringSubmatch(text)
	if m == nil {
		return number, mariadb, false
	}
	for i := range number {
		number[i], _ = strconv.Atoi(m[i+1]) // digits or empty by the rule above
	}
	return number, mariadb, true
}

func (v *server) atLeast(major, minor, patch int) bool {
	a, b := v.number, [3]int{major, minor, patch}
	for i := range a {
		if a[i] != b[i] {
			return a[i] > b[i]
		}
	}
	return true
}

// probe finds out what server this is, once. The version only decides what is
// tried: whether SKIP LOCKED works is seen by running it, since proxies and
// cloud editions report what they like.
func (s *Store) probe(ctx context.Context) (*server, error) {
	s.probeMu.Lock()
	defer s.probeMu.Unlock()
	if s.server != nil {
		return s.server, s.lookAtTable(ctx, s.server)
	}
	var v *server
	err := s.do(ctx, "look at the server", s.db, func(c *conn) error {
		v = &server{}
		var binlogOn bool
		var binlogFormat string
		if err := c.query(func(r row) error {
			v.version, v.maxPacket = r.str(0), r.int(1)
			binlogOn, binlogFormat = r.int(2) != 0, r.str(3)
			return nil
		}, "SELECT VERSION(), @@max_allowed_packet, @@log_bin, @@binlog_format"); err != nil && codeOf(err) == 1193 {
			// A server without one of the variables: only the version matters.
			if err := c.query(func(r row) error { v.version = r.str(0); return nil }, "SELECT VERSION()"); err != nil {
				return err
			}
		} else if err != nil {
			return err
		}
		if binlogOn && binlogFormat == "STATEMENT" {
			return fmt.Errorf("%w: the server logs with binlog_format=STATEMENT, with which READ COMMITTED can't write: set binlog_format to ROW or MIXED", store.ErrSchema)
		}
		v.number, v.mariadb, _ = parseVersion(v.version)
		v.setTypes()
		return v.chooseClaim(c, s.opts.Claim)
	})
	if err != nil {
		return nil, err
	}
	s.opts.Logger.Info("database server", zap.String("server", v.name()), zap.String("claim", v.claim()), zap.String("why", v.why))
	s.server = v
	return v, s.lookAtTable(ctx, v)
}

// lookAtTable finds out how jobs was made: a server that was upgraded keeps the
// real pending column that an older one needed. Until there is a table it looks again.
func (s *Store) lookAtTable(ctx context.Context, v *server) error {
	if v.tablesSeen {
		return nil
	}
	return s.do(ctx, "look at the table of jobs", s.db, func(c *conn) error {
		return c.query(func(r row) error {
			v.tablesSeen, v.virtual = true, strings.Contains(strings.ToUpper(r.str(0)), "GENERATED")
			return nil
		}, "SELECT EXTRA FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ? AND COLUMN_NAME = 'pending'", s.opts.Prefix+"jobs")
	})
}

// forget lets the next call look at the server again.
func (s *Store) forget(v *server) {
	s.probeMu.Lock()
	defer s.probeMu.Unlock()
	if s.server == v {
		s.server = nil
	}
}

func (v *server) setTypes() {
	v.collate, v.json = "utf8mb4_bin", "LONGTEXT CHARACTER SET utf8mb4"
	switch {
	case v.mariadb && v.atLeast(10, 2, 7):
		// JSON is LONGTEXT with a CHECK here; the text stays byte-exact.
		v.collate, v.json, v.virtual = "utf8mb4_nopad_bin", "JSON", true
	case !v.mariadb && v.atLeast(8, 0, 17):
		v.collate, v.json, v.virtual = "utf8mb4_0900_bin", "JSON", true
	case !v.mariadb && v.atLeast(5, 7, 8):
		v.json, v.virtual = "JSON", true
	}
}

func (v *server) chooseClaim(c *conn, want string) error {
	if want == claimCAS {
		v.why = "configured"
		return nil
	}
	err := c.query(func(row) error { return nil }, "SELECT 1 FROM (SELECT 1 AS one) AS t FOR UPDATE SKIP LOCKED")
	switch code := codeOf(err); {
	case err == nil:
		v.skipLocked, v.hasSkipLocked, v.why = true, true, "the server has it"
	case code == errSyntax || code == errNotSupported:
		v.why = "the server has no SKIP LOCKED"
	default:
		return err
	}
	switch {
	case want == claimSkipLocked && !v.skipLocked:
		return fmt.Errorf("%w: claim is set to skip_locked, but %s does not know SKIP LOCKED: set it to auto or cas", store.ErrSchema, v.name())
	case want == claimSkipLocked:
		v.why = "configured"
	case v.skipLocked && v.mariadb:
		v.skipLocked, v.why = false, "MariaDB claims faster this way, measured"
	}
	return nil
}

func (v *server) claim() string {
	if v.skipLocked {
		return claimSkipLocked
	}
	return claimCAS
}

func (v *server) name() string {
	brand := "MySQL"
	if v.mariadb {
		brand = "MariaDB"
	}
	return fmt.Sprintf("%s %d.%d.%d", brand, v.number[0], v.number[1], v.number[2])
}

func (v *server) vars(prefix string) migrations.Vars {
	m := migrations.Vars{Prefix: prefix, JSON: v.json, Collate: v.collate}
	if v.virtual {
		m.Pending = "GENERATED ALWAYS AS (CASE status WHEN 'ready' THEN 1 END) VIRTUAL"
	} else {
		m.Pending = "NULL DEFAULT 1" // kept in step by every statement that writes status
	}
	return m
}

// pendingSet is what a statement that sets status adds where pending does not
// follow by itself.
func (v *server) pendingSet(ready bool) string {
	switch {
	case v.virtual:
		return ""
	case ready:
		return ", pending = 1"
	}
	return ", pending = NULL"
}

// Ping asks the server for an answer and whether it takes writes.
func (s *Store) Ping(ctx context.Context) error {
	return s.do(ctx, "ping the database", s.db, func(c *conn) error {
		return c.query(func(r row) error {
			if r.int(0) != 0 {
				return fmt.Errorf("%w: the server is read-only", store.ErrUnavailable)
			}
			return nil
		}, "SELECT @@global.read_only")
	})
}

// Describe says what was found out about the server.
func (s *Store) Describe(ctx context.Context) (store.Description, error) {
	v, err := s.probe(ctx)
	if err != nil {
		return store.Description{Driver: "mysql", Where: s.where}, err
	}
	return store.Description{
		Driver: "mysql", Server: v.name(), Where: s.where, Claim: v.claim(), Why: v.why,
		// A payload is sent escaped: twice its size at worst, with room for the rest of the row.
		Payload: int(max(v.maxPacket/2-64<<10, 0)),
	}, nil
}

// CheckSchema returns nil when the schema is the one this binary needs.
func (s *Store) CheckSchema(ctx context.Context) error {
	have, err := s.schemaVersion(ctx)
	if err != nil {
		return err
	}
	steps, err := migrations.Load("mysql", migrations.Vars{})
	if err != nil {
		return err
	}
	if want := len(steps); have != want {
		hint := "run `queued migrate up`"
		if have > want {
			hint = "it was made by a newer version: install that one"
		}
		return &store.SchemaError{Have: have, Want: want, Hint: hint}
	}
	return nil
}

func (s *Store) schemaVersion(ctx context.Context) (int, error) {
	var have int
	err := s.do(ctx, "read the schema version", s.db, func(c *conn) error {
		return c.query(func(r row) error { have = int(r.int(0)); return nil },
			"SELECT COALESCE(MAX(version), 0) FROM "+s.t.migrations)
	})
	if errors.Is(err, store.ErrSchema) && codeOf(err) == 1146 {
		return 0, nil
	}
	return have, err
}
