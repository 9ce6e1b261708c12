package migrations

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var vars = Vars{Prefix: "p_", JSON: "JSON", Collate: "utf8mb4_bin", Pending: "NULL DEFAULT 1"}

func load(t *testing.T, dialect string) []Step {
	t.Helper()
	steps, err := Load(dialect, vars)
	if err != nil {
		t.Fatal(err)
	}
	if len(steps) == 0 {
		t.Fatalf("%s has no steps", dialect)
	}
	return steps
}

var (
	createTable = regexp.MustCompile(`(?m)^CREATE TABLE IF NOT EXISTS (?:p_)?(\w+) \(`)
	column      = regexp.MustCompile(`(?m)^  ([a-z]\w*) +[A-Z]`) // constraints and keys begin with capitals
	createIndex = regexp.MustCompile(`(?m)^(?:CREATE (?:UNIQUE )?INDEX IF NOT EXISTS|  (?:UNIQUE )?KEY) (\w+)`)
)

// schema is "table.column" and index names, sorted, that the statements of a step make.
func schema(statements []string) []string {
	var list []string
	for _, s := range statements {
		for _, m := range createIndex.FindAllStringSubmatch(s, -1) {
			list = append(list, "index "+m[1])
		}
		table := createTable.FindStringSubmatch(s)
		if table == nil {
			continue
		}
		for _, m := range column.FindAllStringSubmatch(s, -1) {
			list = append(list, table[1]+"."+m[1])
		}
	}
	slices.Sort(list)
	return list
}

func TestLoad_TheSameNumberMeansTheSameInEveryDialect(t *testing.T) {
	t.Parallel()
	mysql, sqlite := load(t, "mysql"), load(t, "sqlite")
	if len(mysql) != len(sqlite) {
		t.Fatalf("steps: mysql has %d, sqlite %d", len(mysql), len(sqlite))
	}
	// MySQL has no partial indexes: a column of its own says what is pending.
	onlyMySQL := map[string]bool{"jobs.pending": true}
	for i := range mysql {
		if mysql[i].Name != sqlite[i].Name || mysql[i].Version != i+1 || sqlite[i].Version != i+1 {
			t.Errorf("step %d: mysql has %d %q, sqlite %d %q", i+1, mysql[i].Version, mysql[i].Name, sqlite[i].Version, sqlite[i].Name)
		}
		want := slices.DeleteFunc(schema(mysql[i].Up), func(s string) bool { return onlyMySQL[s] })
		if diff := cmp.Diff(want, schema(sqlite[i].Up)); diff != "" {
			t.Errorf("schema of step %d (-mysql +sqlite):\n%s", i+1, diff)
		}
	}
	if n := len(schema(mysql[0].Up)); n < 60 {
		t.Errorf("only %d columns and indexes were understood", n)
	}
}

// A step that was cut off is run again from its top.
func TestLoad_EveryStatementCanBeRepeated(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"mysql", "sqlite"} {
		for _, step := range load(t, dialect) {
			for _, s := range slices.Concat(step.Up, step.Down) {
				s = regexp.MustCompile(`(?m)^--.*\n`).ReplaceAllString(s, "")
				if !strings.Contains(s, " IF NOT EXISTS ") && !strings.Contains(s, " IF EXISTS ") {
					t.Errorf("%s %d: %s", dialect, step.Version, s)
				}
			}
		}
	}
}

func TestLoad_DownDropsWhatUpMakes(t *testing.T) {
	t.Parallel()
	drop := regexp.MustCompile(`(?m)^DROP TABLE IF EXISTS (?:p_)?(\w+)`)
	for _, dialect := range []string{"mysql", "sqlite"} {
		for _, step := range load(t, dialect) {
			made, dropped := map[string]bool{}, map[string]bool{}
			for _, m := range createTable.FindAllStringSubmatch(strings.Join(step.Up, "\n"), -1) {
				made[m[1]] = true
			}
			for _, m := range drop.FindAllStringSubmatch(strings.Join(step.Down, "\n"), -1) {
				dropped[m[1]] = true
			}
			if !maps.Equal(made, dropped) {
				t.Errorf("%s %d: makes %v, drops %v", dialect, step.Version, made, dropped)
			}
		}
	}
}

func TestLoad_FillsInThePrefix(t *testing.T) {
	t.Parallel()
	for _, step := range load(t, "mysql") {
		for _, s := range slices.Concat(step.Up, step.Down) {
			if m := regexp.MustCompile(`TABLE IF (?:NOT )?EXISTS (\w+)`).FindStringSubmatch(s); m != nil && !strings.HasPrefix(m[1], "p_") {
				t.Errorf("step %d: table %s has no prefix", step.Version, m[1])
			}
		}
	}
}

func TestLoad_OfAnUnknownDialectIsAnError(t *testing.T) {
	t.Parallel()
	if steps, err := Load("oracle", vars); err == nil {
		t.Errorf("got %s", fmt.Sprint(steps))
	}
}
