package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"queued/job"
)

// Default is the configuration without any source, but for database.path, which
// depends on the environment.
func Default() *Config {
	c := &Config{}
	setDefaults(options, c)
	q := Queue{Name: job.DefaultQueue}
	setDefaults(queueOptions, &q)
	c.Queues = []Queue{q}
	return c
}

// minHeartbeats is how many heartbeats a lease must have room for, so that one
// that is lost or late does no harm.
const minHeartbeats = 3

var prefixRule = regexp.MustCompile(`^[A-Za-z0-9_]{0,32}$`)

// check applies the rules that concern more than one value.
func (l *loader) check() {
	c := &l.cfg
	l.checkDatabase()
	l.checkQueues()
	l.checkKinds()
	l.checkBackoff("defaults.backoff", c.Defaults.Backoff)
	if w := &c.Worker; w.Lease < minHeartbeats*w.Heartbeat {
		l.violate("worker.lease", FormatDuration(w.Lease), fmt.Sprintf("must be at least %d heartbeats, which is %s", minHeartbeats, FormatDuration(minHeartbeats*w.Heartbeat)))
	}
	if rule := listenRule(c.HTTP.Listen); rule != "" {
		l.violate("http.listen", strconv.Quote(c.HTTP.Listen), rule)
	}
}

func (l *loader) checkDatabase() {
	db := &l.cfg.Database
	var where []string // ways to name the database
	for _, w := range []struct {
		key string
		set bool
	}{
		{"database.dsn", db.DSN != ""},
		{"database.host", db.Host != ""},
		{"database.socket", db.Socket != ""},
		{"database.path", db.Path != "" && l.origins["database.path"] != ""},
	} {
		if w.set {
			where = append(where, w.key)
		}
	}
	if len(where) > 1 {
		l.violate(where[1], "", "must not be given together with "+where[0]+": there is one database")
	}
	fields := db.DSN == "" && db.Server()
	for _, f := range []struct {
		key    string
		set    bool
		fields bool // needs host or socket, not just any server
	}{
		{"database.user", db.User != "", true},
		{"database.password", db.Password != "" && db.PasswordFile == "", true},
		{"database.password_file", db.PasswordFile != "", true},
		{"database.name", db.Name != "", true},
		{"database.port", db.Port != Default().Database.Port, true},
		{"database.tls", db.TLS.Mode != "off", false},
		{"database.tls_ca", db.TLS.CA != "", false},
		{"database.tls_cert", db.TLS.Cert != "", false},
		{"database.table_prefix", db.TablePrefix != "", false},
		{"database.claim", db.Claim != "auto", false},
	} {
		switch {
		case f.set && f.fields && !fields:
			l.violate(f.key, "", "needs database.host or database.socket beside it")
		case f.set && !db.Server():
			l.violate(f.key, "", "needs a database server: set database.dsn, database.host or database.socket")
		}
	}
	if fields && db.Name == "" {
		l.violate("database.name", "", "must be set: it is the schema with the tables")
	}
	if (db.TLS.Cert == "") != (db.TLS.Key == "") {
		l.violate("database.tls_cert", "", "must be given together with database.tls_key")
	}
	if !prefixRule.MatchString(db.TablePrefix) {
		l.violate("database.table_prefix", strconv.Quote(db.TablePrefix), "must be at most 32 of A-Z a-z 0-9 and _")
	}
}

func (l *loader) checkQueues() {
	if len(l.cfg.Queues) == 0 {
		l.violate("queues", "", "must have at least one entry")
	}
	var names []string
	for i, q := range l.cfg.Queues {
		l.checkName(fmt.Sprintf("queues[%d].name", i), q.Name, names)
		names = append(names, q.Name)
	}
}

func (l *loader) checkKinds() {
	var names []string
	for i := range l.cfg.Kinds {
		k := &l.cfg.Kinds[i]
		at := fmt.Sprintf("kinds[%d].", i)
		given := l.items.kinds[i]
		l.checkName(at+"name", k.Name, names)
		names = append(names, k.Name)
		l.checkBackoff(at+"backoff", k.Policy.Backoff)
		switch {
		case !given["handler"]:
			l.violate(at+"handler", "", "must be set: log or exec")
		case k.Handler == HandlerExec && len(k.Exec.Command) == 0:
			l.violate(at+"command", "", "must be set: the program and its arguments, as a list")
		case k.Handler == HandlerLog || k.Handler == HandlerGo:
			for _, o := range kindOptions {
				if given[o.key] && strings.HasPrefix(o.text, "exec: ") {
					l.violate(at+o.key, "", "is for handler: exec only")
				}
			}
		}
		if given["backoff.schedule"] && len(k.Policy.Backoff.Schedule) == 0 {
			l.violate(at+"backoff.schedule", "", "must have at least one entry")
		}
	}
}

// checkName applies the rules that the names of queues and kinds share.
func (l *loader) checkName(field, name string, others []string) {
	n := job.New{Kind: name}
	var fe *job.FieldError
	switch err := n.Validate(0); {
	case errors.As(err, &fe):
		l.violate(field, "", fe.Rule)
	case slices.Contains(others, name):
		l.violate(field, strconv.Quote(name), "must be there once")
	}
}

func (l *loader) checkBackoff(field string, b job.Backoff) {
	if b.Base > b.Cap {
		l.violate(field+".base", FormatDuration(b.Base), "must not be longer than the cap, which is "+FormatDuration(b.Cap))
	}
}

// listenRule is the rule that an address to listen on breaks, or "".
func listenRule(addr string) string {
	if addr == "off" {
		return ""
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "must be an address and a port, such as 127.0.0.1:9464, or off"
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return "must have a port between 0 and 65535"
	}
	if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.IsLoopback()) {
		return "must be an address of this machine's loopback, 127.0.0.1 or [::1]: there is no authentication yet"
	}
	return ""
}
