package main

import (
	"strings"
	"testing"
)

func run(t *testing.T, lines string) (out string, ok bool) {
	t.Helper()
	var b strings.Builder
	ok, err := summarize(strings.NewReader(lines), &b)
	if err != nil {
		t.Fatalf("summarize: %v", err)
	}
	return b.String(), ok
}

const passing = `{"Action":"start","Package":"queued/job"}
{"Action":"run","Package":"queued/job","Test":"TestA"}
{"Action":"output","Package":"queued/job","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"pass","Package":"queued/job","Test":"TestA","Elapsed":0.1}
{"Action":"pass","Package":"queued/job","Elapsed":0.5}
{"Action":"run","Package":"queued/internal/enqueue","Test":"TestB"}
{"Action":"run","Package":"queued/internal/enqueue","Test":"TestB/mysql97"}
{"Action":"run","Package":"queued/internal/enqueue","Test":"TestB/mysql97/one"}
{"Action":"pass","Package":"queued/internal/enqueue","Test":"TestB/mysql97/one"}
{"Action":"run","Package":"queued/internal/enqueue","Test":"TestB/mysql97/two"}
{"Action":"pass","Package":"queued/internal/enqueue","Test":"TestB/mysql97/two"}
{"Action":"pass","Package":"queued/internal/enqueue","Test":"TestB/mysql97"}
{"Action":"run","Package":"queued/internal/enqueue","Test":"TestB/sqlite"}
{"Action":"pass","Package":"queued/internal/enqueue","Test":"TestB/sqlite"}
{"Action":"pass","Package":"queued/internal/enqueue","Test":"TestB"}
{"Action":"pass","Package":"queued/internal/enqueue","Elapsed":2}
{"Action":"skip","Package":"queued/migrations","Elapsed":0}
`

func TestSummary_CountsTestsOnceAndByServer(t *testing.T) {
	t.Parallel()
	got, ok := run(t, passing)
	want := `ok    job                              0.5s  1
ok    internal/enqueue                 2.0s  3

tests             mysql97  mysql56  mariadb1011  mariadb105  sqlite  other
internal/enqueue        2        -            -           -       1      -
job                     -        -            -           -       -      1
all                     2        -            -           -       1      1

4 passed, 0 failed
`
	if got != want || !ok {
		t.Errorf("got %v\n%s\nwant true\n%s", ok, got, want)
	}
}

func TestSummary_FailureShowsItsOutputAndFailsTheRun(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		lines string
		want  []string
	}{
		"subtest": {
			lines: `{"Action":"run","Package":"queued/x","Test":"T"}
{"Action":"run","Package":"queued/x","Test":"T/mysql56"}
{"Action":"output","Package":"queued/x","Test":"T/mysql56","Output":"    x_test.go:1: got 1, want 2\n"}
{"Action":"fail","Package":"queued/x","Test":"T/mysql56"}
{"Action":"fail","Package":"queued/x","Test":"T"}
{"Action":"fail","Package":"queued/x"}
`,
			want: []string{"got 1, want 2", "FAIL  x", "\n0 passed, 1 failed\n"},
		},
		"a test beside its subtests": {
			lines: `{"Action":"run","Package":"queued/x","Test":"T"}
{"Action":"run","Package":"queued/x","Test":"T/a"}
{"Action":"pass","Package":"queued/x","Test":"T/a"}
{"Action":"fail","Package":"queued/x","Test":"T"}
{"Action":"fail","Package":"queued/x"}
`,
			want: []string{"\n1 passed, 1 failed\n"},
		},
		"timeout leaves tests open": {
			lines: `{"Action":"run","Package":"queued/x","Test":"T"}
{"Action":"output","Package":"queued/x","Test":"T","Output":"panic: test timed out\n"}
{"Action":"fail","Package":"queued/x"}
`,
			want: []string{"panic: test timed out", "\n0 passed, 1 failed\n"},
		},
		"build": {
			lines: `{"Action":"build-output","ImportPath":"queued/x","Output":"x.go:1:1: undefined: y\n"}
{"Action":"build-fail","ImportPath":"queued/x"}
{"Action":"fail","Package":"queued/x","FailedBuild":"queued/x"}
`,
			want: []string{"undefined: y", "FAIL  x", "\n0 passed, 1 failed\n"},
		},
		"outside of all tests": {
			lines: `{"Action":"run","Package":"queued/x","Test":"T"}
{"Action":"pass","Package":"queued/x","Test":"T"}
{"Action":"output","Package":"queued/x","Output":"goleak: found unexpected goroutines\n"}
{"Action":"fail","Package":"queued/x"}
`,
			want: []string{"found unexpected goroutines", "\n1 passed, 1 failed\n"},
		},
		"go test was stopped": {
			lines: `{"Action":"run","Package":"queued/x","Test":"T"}
`,
			want: []string{"\n0 passed, 1 failed\n"},
		},
		"no test at all": {lines: "go: cannot find main module\n", want: []string{"cannot find main module", "\n0 passed, 0 failed\n"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, ok := run(t, tt.lines)
			if ok {
				t.Error("ok: got true, want false")
			}
			for _, w := range tt.want {
				if !strings.Contains(got, w) {
					t.Errorf("got\n%s\nwant it to contain %q", got, w)
				}
			}
		})
	}
}

func TestSummary_SkippedTestsAreNamedWithTheirReason(t *testing.T) {
	t.Parallel()
	got, ok := run(t, passing+`{"Action":"run","Package":"queued/x","Test":"T"}
{"Action":"output","Package":"queued/x","Test":"T","Output":"    x_test.go:1: no systemd here\n"}
{"Action":"output","Package":"queued/x","Test":"T","Output":"--- SKIP: T (0.00s)\n"}
{"Action":"skip","Package":"queued/x","Test":"T"}
{"Action":"pass","Package":"queued/x"}
`)
	if want := "  x T: x_test.go:1: no systemd here\n\n4 passed, 0 failed, 1 skipped\n"; !ok || !strings.HasSuffix(got, want) {
		t.Errorf("got %v\n%s\nwant true and at the end %q", ok, got, want)
	}
}

func TestColumn_IsTheServerInTheTestsName(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ pkg, test, want string }{
		{"internal/store/mysql", "TestPlan/mysql56", "mysql56"},
		{"internal/store/mysql", "TestPlan/mysql56#01/x", "mysql56"},
		{"internal/store/mysql", "TestMariaDB1011/Claim_x", "mariadb1011"},
		{"internal/store/mysql", "TestMySQL97", "mysql97"},
		{"internal/store/mysql", "TestParseVersion", "other"},
		{"internal/store/sqlite", "TestStore/Claim_x", "sqlite"},
		{"internal/enqueue", "TestInsert_SQLiteWrites", "sqlite"},
		{"internal/cli", "TestScript/other", "other"},
	} {
		if got := column(tt.pkg, tt.test); got != tt.want {
			t.Errorf("%s %s: got %s, want %s", tt.pkg, tt.test, got, tt.want)
		}
	}
}
