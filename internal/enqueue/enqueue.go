// Package enqueue holds the one INSERT into jobs that queued itself uses: the
// stores, the command line and package queued put jobs in through it. It writes
// the columns that every producer may write, and no others (but for SQLite's
// created_at), so it is also the example that producers in other languages follow.
package enqueue

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"queued/job"
)

// Dialect is the SQL that a database speaks.
type Dialect uint8

// The dialects. MySQL is MySQL from 5.6 and MariaDB from 10.2.
const (
	MySQL Dialect = iota
	SQLite
)

// DB is what *sql.Tx, *sql.Conn and *sql.DB have in common.
type DB interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Table says where the jobs go.
type Table struct {
	Dialect Dialect
	// Name is a table or schema.table, each part 1 to 64 of A-Z a-z 0-9 _ $ and -.
	Name string
	// Now is the clock of SQLite, where the host's is the store's; nil is time.Now.
	// MySQL uses the server's clock.
	Now func() time.Time
}

// Result is the fate of one job.
type Result struct {
	// ID is the new row's, or that of the row that holds the key already; 0 when
	// the database user may not read that one.
	ID  int64
	New bool
}

const (
	maxRows  = 100     // of one statement
	maxBytes = 1 << 20 // of one statement's values, unless a single job has more
	// How often a job is tried whose key's row was there for the INSERT and gone for
	// the SELECT. That takes a delete between the two, so twice in a row is a rarity.
	maxTries = 5
)

// Insert puts jobs in, in order, and returns the fate of each, in order. A job
// whose key is there already is not an error; any other error is returned as it
// came, wrapped. The jobs must have passed job.New.Validate.
//
// Insert opens no transaction. Within the caller's it happens with it or not at
// all; on a *sql.DB each statement of up to 100 jobs stands alone. After an error
// in a transaction the caller rolls back: on a deadlock (1213) the server has
// done so already.
func (t Table) Insert(ctx context.Context, db DB, jobs []job.New) ([]Result, error) {
	name, err := t.quoted()
	if err != nil {
		return nil, err
	}
	in := &inserter{db: db, table: name, now: t.Now}
	if in.now == nil {
		in.now = time.Now
	}
	insert := in.mysql
	if t.Dialect == SQLite {
		insert = in.sqlite
	}
	results := make([]Result, 0, len(jobs))
	for len(jobs) > 0 {
		n := chunk(jobs)
		r, err := insert(ctx, jobs[:n])
		if err != nil {
			return nil, fmt.Errorf("insert %s: %w", describe(jobs[:n]), err)
		}
		results = append(results, r...)
		jobs = jobs[n:]
	}
	return results, nil
}

func describe(jobs []job.New) string {
	switch {
	case len(jobs) > 1:
		return fmt.Sprintf("%d jobs", len(jobs))
	case jobs[0].Key != "":
		return fmt.Sprintf("job of kind %q with key %q", jobs[0].Kind, jobs[0].Key)
	default:
		return fmt.Sprintf("job of kind %q", jobs[0].Kind)
	}
}

// chunk is how many of the jobs go into the next statement.
func chunk(jobs []job.New) int {
	n, size := 0, 0
	for n < len(jobs) && n < maxRows {
		size += len(jobs[n].Payload) + len(jobs[n].Key) + len(jobs[n].Kind) + len(jobs[n].Queue) + 100
		if n > 0 && size > maxBytes {
			break
		}
		n++
	}
	return n
}

var namePart = regexp.MustCompile(`^[0-9A-Za-z_$-]{1,64}$`)

func (t Table) quoted() (string, error) {
	q := "`"
	if t.Dialect == SQLite {
		q = `"`
	}
	parts := strings.Split(t.Name, ".")
	if len(parts) > 2 {
		return "", fmt.Errorf("table name %q: must be a table or schema.table", t.Name)
	}
	for i, p := range parts {
		if !namePart.MatchString(p) {
			return "", fmt.Errorf("table name %q: each part must be 1 to 64 of A-Z a-z 0-9 _ $ and -", t.Name)
		}
		parts[i] = q + p + q
	}
	return strings.Join(parts, "."), nil
}

type inserter struct {
	db    DB
	table string
	now   func() time.Time
	step  int64 // @@auto_increment_increment once it was needed
}

// The columns of the contract, in the order of values.
const columns = "(queue, kind, idempotency_key, payload, priority, max_attempts, timeout_ms, available_at, expires_at"

// values appends the values for the columns before available_at.
func values(args []any, j *job.New) []any {
	queue := j.Queue
	if queue == "" {
		queue = job.DefaultQueue
	}
	var payload any
	if j.Payload != nil {
		payload = string(j.Payload) // as []byte the driver may send it as binary, which a JSON column refuses
	}
	return append(args, queue, j.Kind, null(j.Key), payload, j.Priority, null(j.MaxAttempts), null(j.Timeout.Milliseconds()))
}

func null[T comparable](v T) any {
	var zero T
	if v == zero {
		return nil
	}
	return v
}

// Milliseconds of t since 1970, rounded up so that nothing is due too early.
func ceilMillis(t time.Time) int64 {
	ms := t.UnixMilli()
	if t.Nanosecond()%int(time.Millisecond) != 0 {
		ms++
	}
	return ms
}

// ---- MySQL

// The statement must mean the same in every time zone that the caller's session
// may have, also while clocks are put back: there, a local time stands for two
// instants, and no local time that is written into a TIMESTAMP column reaches the
// second of them. So the statement, and nothing but the statement, runs in UTC:
// by SET STATEMENT on MariaDB (a comment to MySQL), by the hint on MySQL from
// 8.0.17 (a comment to the others). MySQL before that knows neither; the
// expressions below are right there as well but for instants within the hour that
// occurs twice, in sessions whose zone has one.
const (
	mysqlInsert = "/*M!100102 SET STATEMENT time_zone = '+00:00' FOR */ INSERT /*+ SET_VAR(time_zone = '+00:00') */ INTO "
	// An instant in milliseconds since 1970.
	mysqlAt = "FROM_UNIXTIME(? * 0.001)"
	// The server's time plus milliseconds. NOW() + INTERVAL would count in local
	// time: an hour too long or short over a change of clocks, or a time that does
	// not exist. Multiplied instead of divided because a division's digits depend on
	// div_precision_increment.
	mysqlIn = "FROM_UNIXTIME((TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) + ? * 1000) * 0.000001)"
)

const (
	mysqlDuplicate    = 1062
	mysqlTableDenied  = 1142
	mysqlColumnDenied = 1143
)

func isMySQL(err error, numbers ...uint16) bool {
	var e *mysql.MySQLError
	return errors.As(err, &e) && slices.Contains(numbers, e.Number)
}

// mysql inserts one statement's worth of jobs.
//
// When the one statement meets a duplicate, InnoDB has undone that statement and
// nothing else, and each job is inserted by itself. ON DUPLICATE KEY UPDATE would
// need the driver's clientFoundRows flag to be known to read its row count, and
// INSERT IGNORE hides other errors along with the duplicates.
func (in *inserter) mysql(ctx context.Context, jobs []job.New) ([]Result, error) {
	if len(jobs) > 1 {
		first, err := in.mysqlInsert(ctx, jobs)
		if err == nil {
			return in.mysqlIDs(ctx, first, len(jobs))
		}
		if !isMySQL(err, mysqlDuplicate) {
			return nil, err
		}
	}
	results := make([]Result, len(jobs))
	for i := range jobs {
		var err error
		if results[i], err = in.mysqlOne(ctx, jobs[i:i+1]); err != nil {
			return nil, err
		}
	}
	return results, nil
}

func (in *inserter) mysqlOne(ctx context.Context, one []job.New) (Result, error) {
	var err error
	for range maxTries {
		var id int64
		if id, err = in.mysqlInsert(ctx, one); err == nil {
			return Result{ID: id, New: true}, nil
		}
		if !isMySQL(err, mysqlDuplicate) {
			return Result{}, err
		}
		if one[0].Key == "" {
			continue // an id given twice; MySQL 5.6 does that to sessions of different steps
		}
		id, found, lookErr := in.mysqlLookup(ctx, one[0].Key)
		if lookErr != nil {
			return Result{}, lookErr
		}
		if found {
			return Result{ID: id}, nil
		}
	}
	return Result{}, err
}

// mysqlLookup reads the id of the row that holds the key. It is a locking read,
// since the snapshot of a REPEATABLE READ transaction may be older than that row.
// The refused INSERT has locked the index entry in the same way already, and as
// the index covers the query the row itself, which a worker may hold, is not touched.
func (in *inserter) mysqlLookup(ctx context.Context, key string) (id int64, found bool, err error) {
	id, found, err = in.one(ctx, "SELECT id FROM "+in.table+" WHERE idempotency_key = ? LOCK IN SHARE MODE", key)
	if isMySQL(err, mysqlTableDenied, mysqlColumnDenied) {
		return 0, true, nil // a producer that may INSERT and no more
	}
	if err != nil {
		return 0, false, fmt.Errorf("read job by key: %w", err)
	}
	return id, found, nil
}

func (in *inserter) mysqlInsert(ctx context.Context, jobs []job.New) (first int64, err error) {
	var q strings.Builder
	q.WriteString(mysqlInsert)
	q.WriteString(in.table)
	q.WriteString(" " + columns + ") VALUES ")
	args := make([]any, 0, 9*len(jobs))
	for i := range jobs {
		j := &jobs[i]
		if i > 0 {
			q.WriteString(", ")
		}
		q.WriteString("(?, ?, ?, ?, ?, ?, ?, ")
		args = values(args, j)
		switch {
		case !j.At.IsZero():
			q.WriteString(mysqlAt)
			args = append(args, ceilMillis(j.At))
		case j.Delay > 0:
			q.WriteString(mysqlIn)
			args = append(args, (j.Delay + time.Millisecond - 1).Milliseconds())
		default:
			q.WriteString("DEFAULT")
		}
		if j.ExpiresAt.IsZero() {
			q.WriteString(", NULL)")
		} else {
			q.WriteString(", " + mysqlAt + ")")
			args = append(args, j.ExpiresAt.UnixMilli())
		}
	}
	res, err := in.db.ExecContext(ctx, q.String(), args...)
	if err != nil {
		return 0, err
	}
	return res.LastInsertId()
}

// mysqlIDs gives the ids of n rows that one statement inserted. The server
// reports the first. The others follow in steps of auto_increment_increment:
// InnoDB reserves the values of an INSERT whose number of rows is known in one
// piece whatever innodb_autoinc_lock_mode is ("simple inserts" in the manual's
// page on AUTO_INCREMENT handling in InnoDB). The step is not 1 on Galera and in
// group replication.
func (in *inserter) mysqlIDs(ctx context.Context, first int64, n int) ([]Result, error) {
	if in.step == 0 {
		step, _, err := in.one(ctx, "SELECT @@auto_increment_increment")
		if err != nil {
			return nil, fmt.Errorf("read auto_increment_increment: %w", err)
		}
		in.step = max(step, 1)
	}
	results := make([]Result, n)
	for i := range results {
		results[i] = Result{ID: first + int64(i)*in.step, New: true}
	}
	return results, nil
}

// one reads a single integer.
func (in *inserter) one(ctx context.Context, query string, args ...any) (v int64, found bool, err error) {
	rows, err := in.db.QueryContext(ctx, query, args...)
	if err != nil {
		return 0, false, err
	}
	defer rows.Close()
	for rows.Next() {
		if err := rows.Scan(&v); err != nil {
			return 0, false, err
		}
		found = true
	}
	return v, found, rows.Err()
}

// ---- SQLite

// sqlite inserts one statement's worth of jobs, and those again whose key was
// taken for the INSERT and free for the SELECT.
func (in *inserter) sqlite(ctx context.Context, jobs []job.New) ([]Result, error) {
	results := make([]Result, len(jobs))
	left := make([]int, len(jobs)) // indexes of jobs without a result
	for i := range left {
		left[i] = i
	}
	for range maxTries {
		var err error
		if left, err = in.sqliteInsert(ctx, jobs, left, results); err != nil {
			return nil, err
		}
		if left, err = in.sqliteLookup(ctx, jobs, left, results); err != nil {
			return nil, err
		}
		if len(left) == 0 {
			return results, nil
		}
	}
	return nil, fmt.Errorf("key %q is taken at every try and can't be found", jobs[left[0]].Key)
}

// sqliteInsert inserts the jobs at the given indexes and returns those that were
// not new.
func (in *inserter) sqliteInsert(ctx context.Context, jobs []job.New, at []int, results []Result) (dup []int, err error) {
	var q strings.Builder
	q.WriteString("INSERT INTO " + in.table + " " + columns + ", created_at) VALUES ")
	args := make([]any, 0, 10*len(at))
	now := in.now().UnixMilli()
	for n, i := range at {
		j := &jobs[i]
		if n > 0 {
			q.WriteString(", ")
		}
		q.WriteString("(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
		due := now + (j.Delay + time.Millisecond - 1).Milliseconds()
		if !j.At.IsZero() {
			due = ceilMillis(j.At)
		}
		var expires any
		if !j.ExpiresAt.IsZero() {
			expires = j.ExpiresAt.UnixMilli()
		}
		args = append(values(args, j), due, expires, now)
	}
	q.WriteString(" ON CONFLICT (idempotency_key) DO NOTHING RETURNING id, idempotency_key")

	var ids []int64
	taken := make(map[string]bool, len(at)) // keys that this statement inserted
	err = in.pairs(ctx, q.String(), args, func(id int64, key string) {
		ids = append(ids, id)
		taken[key] = true
	})
	if err != nil {
		return nil, err
	}
	// The rows come back in any order, but ids are given in the order of the values.
	slices.Sort(ids)
	for _, i := range at {
		key := jobs[i].Key
		if key != "" && !taken[key] {
			dup = append(dup, i)
			continue
		}
		delete(taken, key) // the same key further on is a duplicate of this one
		if len(ids) == 0 {
			return nil, errors.New("fewer rows were inserted than reported")
		}
		results[i], ids = Result{ID: ids[0], New: true}, ids[1:]
	}
	return dup, nil
}

// sqliteLookup finds the rows that hold the keys of the jobs at the given indexes
// and returns those it did not find.
func (in *inserter) sqliteLookup(ctx context.Context, jobs []job.New, at []int, results []Result) (missing []int, err error) {
	if len(at) == 0 {
		return nil, nil
	}
	args := make([]any, len(at))
	for n, i := range at {
		args[n] = jobs[i].Key
	}
	query := "SELECT id, idempotency_key FROM " + in.table + " WHERE idempotency_key IN (?" + strings.Repeat(", ?", len(at)-1) + ")"
	ids := make(map[string]int64, len(at))
	if err := in.pairs(ctx, query, args, func(id int64, key string) { ids[key] = id }); err != nil {
		return nil, fmt.Errorf("read jobs by key: %w", err)
	}
	for _, i := range at {
		if id, ok := ids[jobs[i].Key]; ok {
			results[i] = Result{ID: id}
		} else {
			missing = append(missing, i)
		}
	}
	return missing, nil
}

// pairs calls f for each row of an id and a key, "" for NULL.
func (in *inserter) pairs(ctx context.Context, query string, args []any, f func(id int64, key string)) error {
	rows, err := in.db.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		var key sql.NullString
		if err := rows.Scan(&id, &key); err != nil {
			return err
		}
		f(id, key.String)
	}
	return rows.Err()
}
