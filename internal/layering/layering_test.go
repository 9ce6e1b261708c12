// Package layering has no code, only a test: who may import whom. The linter
// (depguard in .golangci.yml) has the same bans for direct imports; this test also sees
// what comes in through other packages of the module, and what the linker puts into
// the binary.
package layering

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "queued"

// A pattern is a package, or with "/..." at its end a package and all below it.
type ban struct {
	of    []string // packages of ours
	never []string
	why   string
}

var bans = []ban{
	{
		of:    []string{"queued/job"},
		never: []string{"queued/...", "database/sql/...", "net/...", "os/..."},
		why:   "the domain does no I/O and knows nobody: its rules are tested without a server",
	},
	{
		of: []string{"queued/internal/store/...", "queued/internal/enqueue", "queued/migrations"},
		never: []string{
			"queued/internal/worker", "queued/internal/reaper", "queued/internal/handlers", "queued/internal/admin",
			"queued/internal/daemon", "queued/internal/cli", "queued/internal/config",
		},
		why: "the store is below the daemon: it must not know who calls it",
	},
	{
		of:    []string{"queued/internal/store"},
		never: []string{"database/sql/...", "github.com/go-sql-driver/mysql/...", "modernc.org/sqlite/...", "queued/internal/..."},
		why:   "the contract does not know who implements it, nor with what",
	},
	{
		of: []string{
			"queued/internal/worker", "queued/internal/reaper", "queued/internal/handlers", "queued/internal/admin", "queued/internal/loop",
		},
		never: []string{
			"database/sql/...", "github.com/go-sql-driver/mysql/...", "modernc.org/sqlite/...",
			"queued/internal/store/mysql", "queued/internal/store/sqlite", "queued/internal/enqueue",
		},
		why: "they take the role interfaces of internal/store: what runs on one database runs on all",
	},
	{
		of:    []string{"queued/internal/store/mysql"},
		never: []string{"modernc.org/sqlite/...", "queued/internal/store/sqlite"},
		why:   "one package, one driver",
	},
	{
		of:    []string{"queued/internal/store/sqlite"},
		never: []string{"queued/internal/store/mysql"},
		why:   "one package, one driver",
	},
}

// Of these only the packages named may import what is listed.
var only = []struct {
	may   []string
	these []string
	why   string
}{
	{[]string{"queued/internal/config"}, []string{"github.com/spf13/viper/..."}, "everything else takes typed values"},
	{[]string{"queued/internal/cli", "queued/cmd/queued"}, []string{"github.com/spf13/cobra/..."}, "the daemon must run without the command line"},
	{
		// enqueue and queued look at the errors of producers' own connections.
		[]string{"queued/internal/store/mysql", "queued/internal/enqueue", "queued", "queued/test/..."},
		[]string{"github.com/go-sql-driver/mysql/..."},
		"its errors are mapped in one place",
	},
	{[]string{"queued/internal/store/sqlite", "queued/test/..."}, []string{"modernc.org/sqlite/..."}, "its errors are mapped in one place"},
}

// unshipped must not be in the binary.
var unshipped = []string{
	"testing/...", "github.com/google/go-cmp/...", "pgregory.net/rapid/...", "go.uber.org/goleak/...", "github.com/rogpeppe/go-internal/...",
	"github.com/stretchr/...", "queued/test/...", "queued/internal/store/storetest",
}

// pkg is what `go list -json` says of a package, tests left out.
type pkg struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

func list(t *testing.T, patterns ...string) map[string]pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-json=ImportPath,Imports,Deps"}, patterns...)...)
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			err = errors.New(string(exit.Stderr))
		}
		t.Fatalf("go list: %v", err)
	}
	pkgs := map[string]pkg{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		pkgs[p.ImportPath] = p
	}
}

func matches(path string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		base, below := strings.CutSuffix(pattern, "/...")
		return path == base || below && strings.HasPrefix(path, base+"/")
	})
}

// through follows the imports of path within the module and calls visit for each
// import on the way, with the chain of packages that leads to it.
func through(pkgs map[string]pkg, path string, visit func(chain []string, imported string)) {
	seen := map[string]bool{}
	var walk func(chain []string)
	walk = func(chain []string) {
		p := pkgs[chain[len(chain)-1]]
		if seen[p.ImportPath] {
			return
		}
		seen[p.ImportPath] = true
		for _, imported := range p.Imports {
			visit(chain, imported)
			if _, ours := pkgs[imported]; ours {
				walk(append(slices.Clone(chain), imported))
			}
		}
	}
	walk([]string{path})
}

func TestLayering_NoPackageReachesWhatItIsNotToKnow(t *testing.T) {
	t.Parallel()
	pkgs := list(t, "./...")
	for _, b := range bans {
		found := false
		for _, path := range slices.Sorted(maps.Keys(pkgs)) {
			if !matches(path, b.of) || path == "queued/internal/store/storetest" {
				continue
			}
			found = true
			through(pkgs, path, func(chain []string, imported string) {
				if matches(imported, b.never) && !matches(imported, b.of) {
					t.Errorf("%s imports %s: %s", strings.Join(chain, " -> "), imported, b.why)
				}
			})
		}
		if !found {
			t.Errorf("no package matches %v", b.of)
		}
	}
}

func TestLayering_OnlyTheNamedPackagesImportWhatIsTheirs(t *testing.T) {
	t.Parallel()
	for _, p := range list(t, "./...") {
		for _, o := range only {
			for _, imported := range p.Imports {
				if matches(imported, o.these) && !matches(p.ImportPath, o.may) {
					t.Errorf("%s imports %s, which only %v may: %s", p.ImportPath, imported, o.may, o.why)
				}
			}
		}
	}
}

func TestLayering_DomainImportsTheStandardLibraryOnly(t *testing.T) {
	t.Parallel()
	for _, imported := range list(t, "./job")["queued/job"].Imports {
		if first, _, _ := strings.Cut(imported, "/"); strings.Contains(first, ".") || first == module {
			t.Errorf("job imports %s", imported)
		}
	}
}

func TestLayering_ShippedBinaryLinksNoTestCode(t *testing.T) {
	t.Parallel()
	const binary = "queued/cmd/queued"
	deps := list(t, "./cmd/queued")[binary].Deps
	if len(deps) == 0 {
		t.Fatalf("%s has no dependencies", binary)
	}
	for _, d := range deps {
		if matches(d, unshipped) {
			t.Errorf("%s links %s", binary, d)
		}
	}
}
