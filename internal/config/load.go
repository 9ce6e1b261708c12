package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/viper"
	"go.yaml.in/yaml/v3"
)

// Sources is where a configuration comes from, the strongest last: defaults, the
// file, the environment, flags.
type Sources struct {
	File    string            // path; "" is none
	Environ []string          // as os.Environ gives it
	Flags   map[string]string // values by option key
	Dir     string            // working directory: relative paths outside the file start there
}

// Origins says for each option that was set where that was: "line 3 of
// queued.yaml", "$QUEUED_LOG_LEVEL", "--log-level". What is not in it has its default.
type Origins map[string]string

// EnvPrefix begins the names of our variables: QUEUED_WORKER_LEASE is worker.lease.
const EnvPrefix = "QUEUED_"

// FileVariable names the variable with the path of the file.
const FileVariable = "QUEUED_CONFIG"

// credential is the file in $CREDENTIALS_DIRECTORY that holds a DSN.
const credential = "queued.dsn"

// maxFile bounds what is read of any file.
const maxFile = 1 << 20

// foreignVariables look like options and are none: what exec handlers give to their
// commands, which may well call queued.
var foreignVariables = []string{
	"QUEUED_JOB_ID", "QUEUED_JOB_KEY", "QUEUED_QUEUE", "QUEUED_KIND", "QUEUED_ATTEMPT", "QUEUED_MAX_ATTEMPTS",
	"QUEUED_DEADLINE", "QUEUED_RUN_ID", FileVariable,
}

// Load reads and checks a configuration. The error is an *Error.
func Load(from Sources) (*Config, Origins, error) {
	l := &loader{from: from, env: variables(from.Environ), origins: Origins{}}
	var data []byte
	if from.File != "" {
		var err error
		if data, err = readFile(l.absolute(from.File)); err != nil {
			l.violate(from.File, "", "can't be read: "+reason(err))
		}
	}
	return l.load(data)
}

// load is Load with the text of the file.
func (l *loader) load(data []byte) (*Config, Origins, error) {
	v := viper.New()
	for _, o := range options {
		if o.def != "" {
			v.SetDefault(o.key, o.def)
		}
	}
	l.file(v, data)
	l.environment(v)
	for _, key := range slices.Sorted(maps.Keys(l.from.Flags)) {
		v.Set(key, l.from.Flags[key])
		l.origins[key] = flagOf(key)
	}
	if len(l.bad) == 0 { // a broken file would make a second list of errors out of the first
		l.scalars(v)
		l.lists(v)
		l.secrets()
		l.paths()
		l.check()
	}
	if len(l.bad) > 0 {
		return nil, nil, &Error{Violations: l.bad}
	}
	return &l.cfg, l.origins, nil
}

type loader struct {
	from    Sources
	env     map[string]string
	cfg     Config
	origins Origins
	lines   map[string]int // of the keys in the file, by path
	items   struct{ queues, kinds []map[string]bool }
	bad     []Violation
}

func (l *loader) violate(field, value, rule string) {
	if slices.ContainsFunc(l.bad, func(v Violation) bool { return v.Field == field }) {
		return // what follows from a value that could not be read
	}
	origin := l.origins[field]
	if line := l.lines[field]; origin == "" && line > 0 {
		origin = l.lineOf(line)
	}
	l.bad = append(l.bad, Violation{Field: field, Value: value, Rule: rule, Origin: origin})
}

func (l *loader) lineOf(line int) string {
	return fmt.Sprintf("line %d of %s", line, filepath.Base(l.from.File))
}

// ---- the file

// file reads the text of the file into v and refuses keys that are no options.
func (l *loader) file(v *viper.Viper, data []byte) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, next yaml.Node
	err := dec.Decode(&doc)
	if errors.Is(err, io.EOF) {
		return // empty
	}
	if err == nil {
		switch root := doc.Content[0]; {
		case root.Tag == "!!null":
			return
		case root.Kind != yaml.MappingNode:
			l.violate(l.from.File, "", "must be sections and keys, such as \"log: {level: info}\"")
			return
		}
		if err = dec.Decode(&next); err == nil {
			err = errors.New("must have one document only")
		} else if errors.Is(err, io.EOF) {
			v.SetConfigType("yaml")
			err = v.ReadConfig(bytes.NewReader(data))
		}
	}
	if err != nil {
		if parse, ok := errors.AsType[viper.ConfigParseError](err); ok {
			err = parse.Unwrap()
		}
		l.violate(l.from.File, "", "is not valid YAML: "+strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\n", " "), "yaml: "))
		return
	}
	l.lines = map[string]int{}
	known := append([]string{"queues", "kinds"}, keys("", options)...)
	known = append(known, keys("queues", queueOptions)...)
	l.walk(doc.Content[0], "", "", append(known, keys("kinds", kindOptions)...))
}

// walk notes the line of every key below the mapping n and refuses those that are
// not known. path is where n stands, with the numbers of list entries; pattern is
// the same without them. viper knows no line and folds case, so this looks at the
// text itself.
func (l *loader) walk(n *yaml.Node, path, pattern string, known []string) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if v.Kind == yaml.AliasNode {
			v = v.Alias
		}
		if k.Tag == "!!merge" {
			if v.Kind == yaml.MappingNode {
				l.walk(v, path, pattern, known)
			}
			continue
		}
		at, pat := join(path, k.Value), join(pattern, k.Value)
		isKey, isSection := slices.Contains(known, pat), slices.ContainsFunc(known, func(o string) bool { return strings.HasPrefix(o, pat+".") })
		switch {
		case strings.Contains(k.Value, "."):
			l.lines[at] = k.Line
			l.violate(at, "", "must stand in its section, not with dots in the key")
			continue
		case seen[k.Value]:
			l.lines[at] = k.Line
			l.violate(at, "", "is there twice")
			continue
		case !isKey && !isSection:
			l.unknown(at, pat, k.Line, known)
			continue
		}
		seen[k.Value] = true
		l.lines[at] = k.Line
		switch {
		case v.Tag == "!!null": // as if it were not there
		case isKey && slices.ContainsFunc(known, func(o string) bool { return strings.HasPrefix(o, pat+"[].") }):
			l.walkList(v, at, pat, known)
		case isSection && v.Kind != yaml.MappingNode:
			l.violate(at, "", "must be a section with keys of its own")
		case isSection:
			l.walk(v, at, pat, known)
		default:
			l.origins[at] = l.lineOf(k.Line)
		}
	}
}

func (l *loader) walkList(n *yaml.Node, path, pattern string, known []string) {
	if n.Kind != yaml.SequenceNode {
		l.violate(path, "", "must be a list of entries that begin with \"- name:\"")
		return
	}
	for i, e := range n.Content {
		if e.Kind == yaml.AliasNode {
			e = e.Alias
		}
		at := fmt.Sprintf("%s[%d]", path, i)
		l.lines[at] = e.Line
		if e.Kind != yaml.MappingNode {
			l.violate(at, "", "must be an entry with keys of its own, such as \"- name: mail\"")
			continue
		}
		l.walk(e, at, pattern+"[]", known)
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func (l *loader) unknown(path, pattern string, line int, known []string) {
	rule := "is no option"
	var candidates []string
	for _, k := range known {
		candidates = append(candidates, k)
		for i := range k {
			if k[i] == '.' {
				candidates = append(candidates, k[:i])
			}
		}
	}
	near := nearest(pattern, candidates)
	if near == "" { // the right name in the wrong place
		last := lastPart(pattern)
		if i := slices.IndexFunc(known, func(k string) bool { return lastPart(k) == last }); i >= 0 {
			near = known[i]
		}
	}
	if near != "" {
		rule += "; did you mean " + near + "?"
	}
	l.lines[path] = line
	l.violate(path, "", rule)
}

// lastPart is a key without its sections.
func lastPart(key string) string { return key[strings.LastIndex(key, ".")+1:] }

// ---- the environment

// Variable is the name of the variable that sets the option key.
func Variable(key string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// environment takes over variables that are set and not empty. One that was surely
// meant to be an option is refused; others may be anybody's: Kubernetes, for one,
// makes variables of a service's name.
func (l *loader) environment(v *viper.Viper) {
	byName, inSection := map[string]string{}, map[string]bool{}
	for _, o := range options {
		byName[Variable(o.key)] = o.key
		if section, _, nested := strings.Cut(o.key, "."); nested {
			inSection[Variable(section)+"_"] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l.env)) {
		if !strings.HasPrefix(name, EnvPrefix) || l.env[name] == "" || slices.Contains(foreignVariables, name) {
			continue
		}
		if key, ok := byName[name]; ok {
			v.Set(key, l.env[name])
			l.origins[key] = "$" + name
			continue
		}
		if name == Variable("queues") || name == Variable("kinds") {
			l.violate("$"+name, "", "can only be set in the file")
			continue
		}
		near := nearest(name, slices.Collect(maps.Keys(byName)))
		switch {
		case near != "":
			l.violate("$"+name, "", "is no option; did you mean "+near+"?")
		case slices.ContainsFunc(slices.Collect(maps.Keys(inSection)), func(s string) bool { return strings.HasPrefix(name, s) }):
			l.violate("$"+name, "", "is no option")
		}
	}
}

// ---- values

func (l *loader) scalars(v *viper.Viper) {
	setDefaults(options, &l.cfg)
	for _, o := range options {
		if raw := v.Get(o.key); raw != nil {
			setOption(l, &o, o.key, &l.cfg, raw)
		}
	}
}

// setOption parses raw into the option's place in t.
func setOption[T any](l *loader, o *option[T], field string, t *T, raw any) {
	value := shown(raw)
	if _, secret := o.ptr(t).(*Secret); secret {
		value = ""
	}
	var scratch T // a value that breaks a rule must not be seen by the rules that follow
	rule := setValue(o.ptr(&scratch), raw)
	if rule == "" {
		rule = o.rangeRule(o.ptr(&scratch))
	}
	if rule != "" {
		l.violate(field, value, rule)
		return
	}
	setValue(o.ptr(t), raw)
}

func (l *loader) lists(v *viper.Viper) {
	l.cfg.Queues = entries(l, "queues", queueOptions, v.Get("queues"), func() Queue { return Queue{} }, &l.items.queues)
	if v.Get("queues") == nil {
		l.cfg.Queues = Default().Queues
	}
	l.cfg.Kinds = entries(l, "kinds", kindOptions, v.Get("kinds"), func() Kind { return Kind{Policy: l.cfg.Defaults} }, &l.items.kinds)
}

// entries parses a list. given gets, for each entry, the keys that it has.
func entries[T any](l *loader, name string, table []option[T], raw any, fresh func() T, given *[]map[string]bool) []T {
	list, _ := raw.([]any)
	var result []T
	for i, e := range list {
		m, _ := e.(map[string]any)
		t := fresh()
		setDefaults(table, &t)
		has := map[string]bool{}
		for _, o := range table {
			raw := lookup(m, o.key)
			if raw == nil {
				continue
			}
			has[o.key] = true
			setOption(l, &o, fmt.Sprintf("%s[%d].%s", name, i, o.key), &t, raw)
		}
		result = append(result, t)
		*given = append(*given, has)
	}
	return result
}

func lookup(m map[string]any, key string) any {
	first, rest, nested := strings.Cut(key, ".")
	if !nested {
		return m[first]
	}
	sub, _ := m[first].(map[string]any)
	return lookup(sub, rest)
}

// ---- files

// secrets reads what is kept in files of its own.
func (l *loader) secrets() {
	db := &l.cfg.Database
	read := func(key, file string, into *Secret) {
		if file == "" {
			return
		}
		if *into != "" {
			l.violate(key, strconv.Quote(file), "must not be given together with "+strings.TrimSuffix(key, "_file"))
			return
		}
		text, err := readSecret(l.resolve(key, file))
		if err != nil {
			l.violate(key, strconv.Quote(file), reason(err))
		}
		*into = text
	}
	read("database.dsn_file", db.DSNFile, &db.DSN)
	read("database.password_file", db.PasswordFile, &db.Password)
	if dir := l.env["CREDENTIALS_DIRECTORY"]; dir != "" && !db.Server() && db.Path == "" && db.DSNFile == "" {
		text, err := readSecret(filepath.Join(dir, credential))
		switch {
		case errors.Is(err, os.ErrNotExist):
		case err != nil:
			l.violate("credential "+credential, "", reason(err))
		default:
			db.DSN = text
			l.origins["database.dsn"] = "the credential " + credential
		}
	}
}

func readSecret(name string) (Secret, error) {
	data, err := readFile(name)
	if err != nil {
		return "", err
	}
	text := strings.TrimRight(string(data), "\r\n")
	switch {
	case text == "":
		return "", errors.New("must not be an empty file")
	case strings.ContainsAny(text, "\r\n\x00"):
		return "", errors.New("must be a file with one line of text")
	}
	return Secret(text), nil
}

func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("must be smaller than %s", Size(maxFile))
	}
	return data, err
}

// reason is an error without the path, which the message has already.
func reason(err error) string {
	if pe, ok := errors.AsType[*os.PathError](err); ok {
		return pe.Err.Error()
	}
	return err.Error()
}

func (l *loader) absolute(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(l.from.Dir, path)
}

// resolve makes the path of an option absolute.
func (l *loader) resolve(key, path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(l.base(key), path)
}

// base is the directory that a relative path of an option starts from.
func (l *loader) base(key string) string {
	if !strings.Contains(key, "[") && (l.lines[key] == 0 || l.origins[key] != l.lineOf(l.lines[key])) {
		return l.from.Dir
	}
	return filepath.Dir(l.absolute(l.from.File))
}

// paths makes all paths absolute.
func (l *loader) paths() {
	for _, o := range options {
		if o.path {
			p := o.ptr(&l.cfg).(*string)
			*p = l.resolve(o.key, *p)
		}
	}
	for i := range l.cfg.Kinds {
		k := &l.cfg.Kinds[i]
		key := fmt.Sprintf("kinds[%d]", i)
		k.Exec.Dir = l.resolve(key, k.Exec.Dir)
		if len(k.Exec.Command) > 0 && strings.Contains(k.Exec.Command[0], "/") {
			k.Exec.Command[0] = l.resolve(key, k.Exec.Command[0])
		}
	}
	if db := &l.cfg.Database; db.Path == "" && !db.Server() {
		if dir := StateDir(l.from.Environ); dir != "" {
			db.Path = filepath.Join(dir, "queued.db")
		} else {
			l.violate("database.path", "", "must be set, since there is neither $STATE_DIRECTORY nor $HOME")
		}
	}
}

// StateDir is the directory for what outlives a process: what systemd made for
// us, or the user's own; "" when there is neither.
func StateDir(environ []string) string {
	env := variables(environ)
	if dir, _, _ := strings.Cut(env["STATE_DIRECTORY"], ":"); filepath.IsAbs(dir) {
		return dir
	}
	if dir := env["XDG_STATE_HOME"]; filepath.IsAbs(dir) {
		return filepath.Join(dir, "queued")
	}
	if dir := env["HOME"]; filepath.IsAbs(dir) {
		return filepath.Join(dir, ".local", "state", "queued")
	}
	return ""
}

func variables(environ []string) map[string]string {
	env := make(map[string]string, len(environ))
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		env[name] = value
	}
	return env
}

func flagOf(key string) string {
	for _, o := range options {
		if o.key == key && o.flag != "" {
			return "--" + o.flag
		}
	}
	return "--" + strings.TrimPrefix(key, "database.")
}
