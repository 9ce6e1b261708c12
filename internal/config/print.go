package config

import (
	"fmt"
	"strings"

	"queued/job"
)

// Setting is one effective value and where it is from.
type Setting struct {
	Key    string `json:"key"`
	Value  string `json:"value"`  // as the file has it; hidden when it is secret
	Origin string `json:"origin"` // "default" or an entry of Origins
}

// Settings lists all effective values in the order of the reference.
func Settings(c *Config, from Origins) []Setting {
	var list []Setting
	for _, o := range options {
		origin := from[o.key]
		switch {
		case origin != "":
		case o.key == "database.dsn" && c.Database.DSN != "":
			origin = from["database.dsn_file"]
		case o.key == "database.password" && c.Database.Password != "":
			origin = from["database.password_file"]
		default:
			origin = "default"
		}
		list = append(list, Setting{Key: o.key, Value: format(o.ptr(c)), Origin: origin})
	}
	for i := range c.Queues {
		list = append(list, entrySettings(fmt.Sprintf("queues[%d].", i), queueOptions, &c.Queues[i], from)...)
	}
	for i := range c.Kinds {
		list = append(list, entrySettings(fmt.Sprintf("kinds[%d].", i), kindOptions, &c.Kinds[i], from)...)
	}
	return list
}

func entrySettings[T any](at string, table []option[T], entry *T, from Origins) []Setting {
	var list []Setting
	for _, o := range table {
		origin := from[at+o.key]
		if origin == "" {
			origin = "default"
		}
		value := format(o.ptr(entry))
		switch {
		case origin == "default" && (value == "" || value == "[]"):
			continue // mostly options of another handler
		case o.key == "env":
			value = hidden // programs get their passwords that way
		}
		list = append(list, Setting{Key: at + o.key, Value: value, Origin: origin})
	}
	return list
}

// Flag is an option that `queued run` has as a flag.
type Flag struct {
	Name, Key, Default, Text string
}

// Flags lists them.
func Flags() []Flag {
	var list []Flag
	for _, o := range options {
		if o.flag != "" {
			text, _, _ := strings.Cut(o.text, ". ")
			list = append(list, Flag{o.flag, o.key, o.def, strings.TrimSuffix(text, ".")})
		}
	}
	return list
}

// Reference is the page docs/configuration.md.
func Reference() string {
	var b strings.Builder
	b.WriteString(`# Configuration

<!-- Made from internal/config/options.go by "go generate ./internal/config". Don't edit. -->

` + "`queued`" + ` reads one YAML file: the one named by ` + "`--config`" + `, else by ` + "`$QUEUED_CONFIG`" + `, else
` + "`/etc/queued/queued.yaml`" + ` when it is there. Without a file everything has its default. ` + "`configs/queued.yaml`" + ` shows
every key with its default.

- A flag goes before a variable of the environment, that before the file, that before the default. Variables that
  are empty count as not set. ` + "`queued config print`" + ` shows every value in force and where it is from.
- Keys that are no options are refused, and so are variables that look like a misspelt one.
  ` + "`queued config check`" + ` reports everything that is wrong at once; it needs no database.
- Times need a unit: ` + "`500ms`, `30s`, `10m`, `12h`, `30d`" + `, also together: ` + "`1h30m`" + `. Only 0 may stand alone. Sizes need one, too:
  ` + "`512KiB`, `1MiB`" + `.
- Relative paths in the file start at the file's directory, others at the working directory. That goes for the
  program of an exec handler, too, when there is a slash in it.
- What 0 means stands with each option that allows it.
`)
	for _, s := range sections {
		title := "`" + s.name + "`"
		if s.name == "" {
			title = "Top level"
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s\n", title, s.text)
		switch s.name {
		case "queues":
			referenceTable(&b, s.name, queueOptions)
		case "kinds":
			referenceTable(&b, s.name, kindOptions)
		default:
			var own []option[Config]
			for _, o := range options {
				if in(s.name, o.key) {
					own = append(own, o)
				}
			}
			referenceTable(&b, "", own)
		}
	}
	return b.String()
}

func in(section, key string) bool {
	first, _, nested := strings.Cut(key, ".")
	return nested && first == section || !nested && section == ""
}

func referenceTable[T any](b *strings.Builder, list string, table []option[T]) {
	for _, o := range table {
		fmt.Fprintf(b, "\n### `%s`\n\n%s\n\n", keyOf(list, o.key), o.text)
		var t T
		facts := []string{typeName(o.ptr(&t))}
		if len(o.values) > 0 {
			facts = []string{"one of `" + strings.Join(o.values, "`, `") + "`"}
		}
		if o.lo != "" {
			facts[0] += fmt.Sprintf(", %s to %s", o.lo, o.hi)
		}
		def := o.none
		switch {
		case o.def != "":
			def = "`" + o.def + "`"
		case def == "":
			def = "none"
		}
		facts = append(facts, "default: "+def)
		if list == "" {
			facts = append(facts, "variable: `"+Variable(o.key)+"`")
		}
		if o.flag != "" {
			facts = append(facts, "flag of `queued run`: `--"+o.flag+"`")
		}
		b.WriteString("- " + strings.Join(facts, "\n- ") + "\n")
	}
}

func typeName(ptr any) string {
	switch ptr.(type) {
	case *string:
		return "text"
	case *Secret:
		return "text, never shown"
	case *int:
		return "whole number"
	case *float64:
		return "number"
	case *Size:
		return "size"
	case *[]string:
		return "list of texts"
	case *[]int:
		return "list of whole numbers"
	}
	return strings.TrimPrefix(fmt.Sprintf("%T", ptr), "*time.") // Duration
}

// Sample is the file configs/queued.yaml: every key, at its default.
func Sample() string {
	var b strings.Builder
	b.WriteString(`# Configuration of queued: every key with its default. A key that is commented out has
# none, or the value shown is an example. The reference is docs/configuration.md.
#
# Made from internal/config/options.go by "go generate ./internal/config".
`)
	for _, s := range sections {
		b.WriteString("\n")
		if s.name != "" {
			comment(&b, "", s.text)
		}
		switch s.name {
		case "queues":
			b.WriteString("queues:\n")
			sample(&b, "  ", "- ", queueOptions, map[string]string{"name": job.DefaultQueue})
		case "kinds":
			b.WriteString("kinds: []\n# kinds:\n")
			sample(&b, "#   ", "- ", kindOptions, map[string]string{
				"name": "mail", "handler": HandlerExec, "max_attempts": "5", "timeout": "10m",
				"backoff.base": "10s", "backoff.cap": "1h", "backoff.jitter": "0.2", "backoff.schedule": "[2m, 10m, 30m, 2h]",
				"command": "[/usr/local/bin/send-mail, --verbose]", "dir": "/var/lib/app", "env": "[APP_ENV=production]",
				"pass_env": "[APP_TOKEN]", "done_codes": "[0]", "permanent_codes": "[65]",
			})
		default:
			var own []option[Config]
			for _, o := range options {
				if in(s.name, o.key) {
					own = append(own, o)
				}
			}
			sample(&b, "", "", own, nil)
		}
	}
	return b.String()
}

// sample writes the keys of a table behind indent, the first one behind dash.
// values are examples for keys without a default.
func sample[T any](b *strings.Builder, indent, dash string, table []option[T], values map[string]string) {
	var open []string // sections that the last key stood in
	for i, o := range table {
		path := strings.Split(o.key, ".")
		parents, key := path[:len(path)-1], path[len(path)-1]
		for depth, p := range parents {
			if depth >= len(open) || open[depth] != p {
				b.WriteString(indent + strings.Repeat("  ", depth) + p + ":\n")
			}
		}
		open = parents
		at := indent + strings.Repeat("  ", len(parents))
		text := o.text
		if len(o.values) > 0 {
			text += " One of " + strings.Join(o.values, ", ") + "."
		}
		comment(b, at, text)
		value := values[o.key]
		if value == "" {
			value = o.def
		}
		if value == "" {
			at += "# "
		}
		b.WriteString(strings.TrimRight(at+dash+key+": "+value, " ") + "\n")
		if i == 0 {
			indent += strings.Repeat(" ", len(dash))
			dash = ""
		}
	}
}

func comment(b *strings.Builder, indent, text string) {
	line := indent + "#"
	for word := range strings.FieldsSeq(text) {
		if len(line)+1+len(word) > 100 {
			b.WriteString(line + "\n")
			line = indent + "#"
		}
		line += " " + word
	}
	b.WriteString(line + "\n")
}
