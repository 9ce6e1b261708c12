package mysql

import (
	"strings"
	"testing"
)

// What servers, their forks and proxies in front of them say they are.
func TestParseVersion_ReadsWhatServersReport(t *testing.T) {
	for _, tc := range []struct {
		text    string
		number  [3]int
		mariadb bool
		ok      bool
	}{
		{"5.7.44-log", [3]int{5, 7, 44}, false, true},
		{"8.0.1", [3]int{8, 0, 1}, false, true},
		{"8.0.36-28", [3]int{8, 0, 36}, false, true},
		{"8.4.0", [3]int{8, 4, 0}, false, true},
		{"9.3.0", [3]int{9, 3, 0}, false, true},
		{"5.5.5-10.5.21-MariaDB", [3]int{10, 5, 21}, true, true},
		{"5.5.5-10.11.6-MariaDB-1", [3]int{10, 11, 6}, true, true},
		{"11.4.5-MariaDB", [3]int{11, 4, 5}, true, true},
		{"10.6.4-MariaDB-log", [3]int{10, 6, 4}, true, true},
		{"8.0.mysql_aurora.3.04.0", [3]int{8, 0, 0}, false, true},
		{"5.5.30", [3]int{5, 5, 30}, false, true}, // some proxies
		{"", [3]int{}, false, false},
		{"unknown", [3]int{}, false, false},
	} {
		number, mariadb, ok := parseVersion(tc.text)
		if number != tc.number || mariadb != tc.mariadb || ok != tc.ok {
			t.Errorf("parseVersion(%q): got %v, MariaDB %t, ok %t, want %v, %t, %t", tc.text, number, mariadb, ok, tc.number, tc.mariadb, tc.ok)
		}
	}
}

func TestOpen_RefusesSettingsThatNameTheFieldAndHidePasswords(t *testing.T) {
	valid := Options{DSN: "root:sesame@tcp(127.0.0.1:3306)/queued"}
	for _, tc := range []struct {
		name   string
		change func(*Options)
		want   string
	}{
		{"no schema", func(o *Options) { o.DSN = "root:sesame@tcp(127.0.0.1:3306)/" }, "schema"},
		{"malformed DSN", func(o *Options) { o.DSN = "root:sesame@127.0.0.1:3306/queued" }, "DSN"},
		{"prefix", func(o *Options) { o.Prefix = "a`b" }, "prefix"},
		{"long prefix", func(o *Options) { o.Prefix = strings.Repeat("x", 33) }, "prefix"},
		{"claim", func(o *Options) { o.Claim = "lock" }, "claim"},
		{"tls", func(o *Options) { o.TLS = "maybe" }, "tls"},
		{"tls ca", func(o *Options) { o.TLS, o.TLSCA = "verify-ca", "/nonexistent" }, "tls ca"},
	} {
		o := valid
		tc.change(&o)
		s, err := Open(o)
		if err == nil {
			t.Errorf("%s: got no error", tc.name)
			_ = s.Close()
			continue
		}
		if msg := err.Error(); !strings.Contains(msg, tc.want) || strings.Contains(msg, "sesame") {
			t.Errorf("%s: got %q, want it to name %q and no password", tc.name, msg, tc.want)
		}
	}
}
