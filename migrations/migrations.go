// Package migrations holds the schema of queued, one file per step and dialect.
// The same number means the same thing in every dialect.
//
// A file is a text/template over Vars with statements that end in ";" at the end of a
// line. Statements are idempotent (IF NOT EXISTS, IF EXISTS), because MySQL
// commits at each of them: a step that was cut off is run again from its top.
package migrations

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"text/template"
)

//go:embed mysql/*.sql sqlite/*.sql
var files embed.FS

// Vars fills in what differs between servers and installations.
type Vars struct {
	Prefix  string // of every table's name
	JSON    string // type of a payload column
	Collate string // byte-exact collation for identifiers
	Pending string // definition of jobs.pending behind its type; see mysql/0001
}

// Step is one version of the schema.
type Step struct {
	Version  int
	Name     string
	Up, Down []string // statements
}

// Load returns the steps of a dialect ("mysql" or "sqlite") in order.
func Load(dialect string, vars Vars) ([]Step, error) {
	entries, err := fs.ReadDir(files, dialect)
	if err != nil {
		return nil, fmt.Errorf("load migrations of %s: %w", dialect, err)
	}
	var steps []Step
	for _, e := range entries { // sorted by name
		base, isUp := strings.CutSuffix(e.Name(), ".up.sql")
		if !isUp {
			continue
		}
		num, name, _ := strings.Cut(base, "_")
		version, err := strconv.Atoi(num)
		if err != nil || version != len(steps)+1 {
			return nil, fmt.Errorf("load migrations of %s: %s is not version %d", dialect, e.Name(), len(steps)+1)
		}
		step := Step{Version: version, Name: strings.ReplaceAll(name, "_", " ")}
		if step.Up, err = statements(path.Join(dialect, e.Name()), vars); err != nil {
			return nil, err
		}
		if step.Down, err = statements(path.Join(dialect, base+".down.sql"), vars); err != nil {
			return nil, err
		}
		steps = append(steps, step)
	}
	return steps, nil
}

func statements(name string, vars Vars) ([]string, error) {
	text, err := files.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read migration: %w", err)
	}
	t, err := template.New(name).Option("missingkey=error").Parse(string(text))
	if err != nil {
		return nil, fmt.Errorf("parse migration: %w", err)
	}
	var b strings.Builder
	if err := t.Execute(&b, vars); err != nil {
		return nil, fmt.Errorf("fill in migration: %w", err)
	}
	var list []string
	for s := range strings.SplitSeq(b.String(), ";\n") {
		if s = strings.TrimSpace(s); s != "" {
			list = append(list, s)
		}
	}
	return list, nil
}
