// Command summary reads what `go test -json` writes, shows failures as they come
// and a line per package, and ends with what was covered: tests per package and,
// by the names of subtests, per database server. Its exit code is 1 when a test
// or a package failed, or when there was no test at all.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

const (
	module = "queued"
	other  = "other" // tests that no server takes part in
)

// columns are the databases as subtests are called.
var columns = []string{"mysql97", "mysql56", "mariadb1011", "mariadb105", "sqlite", other}

func main() {
	ok, err := summarize(os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "summary:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// event is a line of `go test -json`; see `go doc test2json`.
type event struct {
	Action     string
	Package    string
	ImportPath string // of build-output
	Test       string
	Output     string
	Elapsed    float64 // seconds
}

// tally counts tests by how they ended.
type tally struct{ passed, failed, skipped int }

func (t *tally) add(action string) {
	switch action {
	case "pass":
		t.passed++
	case "skip":
		t.skipped++
	default:
		t.failed++
	}
}

func (t *tally) plus(o tally) {
	t.passed += o.passed
	t.failed += o.failed
	t.skipped += o.skipped
}

func (t tally) String() string {
	var parts []string
	if t.passed > 0 {
		parts = append(parts, fmt.Sprint(t.passed))
	}
	if t.failed > 0 {
		parts = append(parts, fmt.Sprintf("%d failed", t.failed))
	}
	if t.skipped > 0 {
		parts = append(parts, fmt.Sprintf("%d skipped", t.skipped))
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ", ")
}

// pkg is one package's run.
type pkg struct {
	name   string
	result map[string]string           // how each test ended, "" while it runs
	output map[string]*strings.Builder // of tests that have not passed; "" is the package's own
	failed bool
	counts map[string]*tally // by column
	total  tally
}

// report is everything that was seen.
type report struct {
	out     io.Writer
	pkgs    map[string]*pkg
	skipped []string
}

// summarize returns whether there were tests and all went well.
func summarize(in io.Reader, out io.Writer) (ok bool, err error) {
	r := &report{out: out, pkgs: map[string]*pkg{}}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				fmt.Fprintf(out, "%s", line) // the go command's own words
			} else {
				r.take(e)
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return false, err
		}
	}
	// A package that never ended: go test itself was stopped.
	for _, p := range r.sorted() {
		if p.counts == nil {
			r.end(p, event{Action: "fail"})
		}
	}
	return r.table(), nil
}

func (r *report) take(e event) {
	if e.Action == "build-output" {
		fmt.Fprint(r.out, e.Output)
		return
	}
	if e.Package == "" {
		return
	}
	p := r.pkgs[e.Package]
	if p == nil {
		p = &pkg{
			name:   strings.TrimPrefix(e.Package, module+"/"),
			result: map[string]string{}, output: map[string]*strings.Builder{},
		}
		r.pkgs[e.Package] = p
	}
	switch e.Action {
	case "run":
		p.result[e.Test] = ""
	case "output":
		if isFrame(e.Output) {
			return
		}
		if p.output[e.Test] == nil {
			p.output[e.Test] = &strings.Builder{}
		}
		p.output[e.Test].WriteString(e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.end(p, e)
			return
		}
		p.result[e.Test] = e.Action
		switch e.Action {
		case "fail":
			r.show(p, e.Test)
		case "skip":
			reason := ""
			if o := p.output[e.Test]; o != nil {
				first, _, _ := strings.Cut(strings.TrimSpace(o.String()), "\n")
				reason = ": " + strings.TrimSpace(first)
			}
			r.skipped = append(r.skipped, p.name+" "+e.Test+reason)
		}
		delete(p.output, e.Test)
	}
}

// isFrame says whether a line only tells that a test goes on.
func isFrame(line string) bool {
	for _, s := range []string{"=== RUN", "=== PAUSE", "=== CONT", "=== NAME", "--- SKIP", "--- PASS"} {
		if strings.HasPrefix(strings.TrimLeft(line, " "), s) {
			return true
		}
	}
	return false
}

func (r *report) show(p *pkg, test string) {
	if o := p.output[test]; o != nil {
		fmt.Fprintf(r.out, "%s %s\n%s", p.name, test, o)
		delete(p.output, test)
	}
}

// end counts a package's tests. A test with subtests counts through them, unless
// it failed on its own.
func (r *report) end(p *pkg, e event) {
	p.failed = e.Action == "fail"
	p.counts = map[string]*tally{}
	for _, c := range columns {
		p.counts[c] = &tally{}
	}
	hasSub, subFailed := map[string]bool{}, map[string]bool{}
	for test, how := range p.result {
		for i := range len(test) {
			if test[i] == '/' {
				hasSub[test[:i]] = true
				subFailed[test[:i]] = subFailed[test[:i]] || how != "pass" && how != "skip"
			}
		}
	}
	for _, test := range slices.Sorted(maps.Keys(p.result)) {
		how := p.result[test]
		if how == "" { // cut off by a panic or a timeout
			r.show(p, test)
			how = "fail"
		}
		if hasSub[test] && (how != "fail" || subFailed[test]) {
			continue
		}
		p.counts[column(p.name, test)].add(how)
		p.total.add(how)
	}
	if p.failed {
		r.show(p, "")
		if p.total.failed == 0 { // it did not build, or failed outside its tests
			p.counts[other].add("fail")
			p.total.add("fail")
		}
	}
	word := "ok"
	switch {
	case p.failed:
		word = "FAIL"
	case len(p.result) == 0:
		return
	}
	fmt.Fprintf(r.out, "%-4s  %-28s %7.1fs  %s\n", word, p.name, e.Elapsed, p.total)
}

// column finds the database in a test's name: a part that is a server's name, as in
// TestX/mysql97/y or TestMySQL97/y, or the word SQLite, or the store's own package.
func column(pkg, test string) string {
	for part := range strings.SplitSeq(strings.ToLower(test), "/") {
		part, _, _ = strings.Cut(part, "#") // the mark of a repeated name
		part = strings.TrimPrefix(part, "test")
		if part != other && slices.Contains(columns, part) {
			return part
		}
	}
	if strings.Contains(test, "SQLite") || strings.HasSuffix(pkg, "store/sqlite") {
		return "sqlite"
	}
	return other
}

func (r *report) sorted() []*pkg {
	return slices.SortedFunc(maps.Values(r.pkgs), func(a, b *pkg) int { return cmp.Compare(a.name, b.name) })
}

// table prints what was covered.
func (r *report) table() (ok bool) {
	var total tally
	ok = true
	sums := map[string]*tally{}
	for _, c := range columns {
		sums[c] = &tally{}
	}
	rows := [][]string{append([]string{"tests"}, columns...)}
	for _, p := range r.sorted() {
		ok = ok && !p.failed
		if p.total == (tally{}) {
			continue
		}
		row := []string{p.name}
		for _, c := range columns {
			row = append(row, p.counts[c].String())
			sums[c].plus(*p.counts[c])
		}
		total.plus(p.total)
		rows = append(rows, row)
	}
	row := []string{"all"}
	for _, c := range columns {
		row = append(row, sums[c].String())
	}
	rows = append(rows, row)

	width := make([]int, len(row))
	for _, row := range rows {
		for i, cell := range row {
			width[i] = max(width[i], len(cell))
		}
	}
	fmt.Fprintln(r.out)
	for _, row := range rows {
		fmt.Fprintf(r.out, "%-*s", width[0], row[0])
		for i, cell := range row[1:] {
			fmt.Fprintf(r.out, "  %*s", width[i+1], cell)
		}
		fmt.Fprintln(r.out)
	}
	if len(r.skipped) > 0 {
		fmt.Fprintln(r.out, "\nskipped:")
		for _, s := range r.skipped {
			fmt.Fprintln(r.out, "  "+s)
		}
	}
	line := fmt.Sprintf("%d passed, %d failed", total.passed, total.failed)
	if total.skipped > 0 {
		line += fmt.Sprintf(", %d skipped", total.skipped)
	}
	fmt.Fprintln(r.out, "\n"+line)
	return ok && total.failed == 0 && total.passed > 0
}
