// Package handlers knows which handler runs which kind of job, and holds the
// handlers that need no programming: log and exec.
package handlers

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"queued/job"
)

// Types of handlers that a configuration can name.
const (
	TypeLog  = "log"
	TypeExec = "exec"
)

// Types lists them.
var Types = []string{TypeExec, TypeLog}

// Kind configures one kind of job.
type Kind struct {
	Name   string
	Type   string // one of Types
	Policy job.Policy
	Exec   Exec // when Type is exec
}

// Registry maps kinds to handlers. It is filled before the daemon starts and only
// read afterwards, so it needs no lock.
type Registry struct {
	entries  map[string]entry
	stopTime time.Duration
}

type entry struct {
	handler job.Handler
	policy  job.Policy
}

// New makes a registry of the configured kinds. The error joins everything that
// is wrong with them; log receives what handlers have to say of their runs.
func New(kinds []Kind, log *zap.Logger) (*Registry, error) {
	r := &Registry{entries: make(map[string]entry)}
	var errs []error
	for _, k := range kinds {
		var h job.Handler
		var err error
		switch k.Type {
		case TypeLog:
			h = newLog(log)
		case TypeExec:
			h, err = newExec(k.Exec, k.Policy, log)
			r.stopTime = max(r.stopTime, k.Exec.withDefaults().KillGrace+killTime)
		default:
			err = fmt.Errorf("type %q: must be one of %v", k.Type, Types)
		}
		if err == nil {
			err = r.Add(k.Name, h, k.Policy)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("kind %q: %w", k.Name, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return r, nil
}

// Add puts in a handler. A kind has exactly one.
func (r *Registry) Add(kind string, h job.Handler, p job.Policy) error {
	n := job.New{Kind: kind}
	if err := n.Validate(0); err != nil {
		return err
	}
	if _, taken := r.entries[kind]; taken {
		return errors.New("is there twice")
	}
	r.entries[kind] = entry{h, p}
	return nil
}

// Lookup returns the handler and the policy of a kind; ok is false for a kind that
// is not known. Kinds are compared byte by byte.
func (r *Registry) Lookup(kind string) (h job.Handler, p job.Policy, ok bool) {
	e, ok := r.entries[kind]
	return e.handler, e.policy, ok
}

// Kinds returns the known kinds, sorted.
func (r *Registry) Kinds() []string { return slices.Sorted(maps.Keys(r.entries)) }

// StopTime is how long the slowest of the built-in handlers takes to return when
// its context has ended, at most; 0 when all do so at once. The daemon must not
// give up on handlers before that.
func (r *Registry) StopTime() time.Duration { return r.stopTime }

// fields are the fields that every line about a run carries.
func fields(j *job.Job) []zap.Field {
	return []zap.Field{
		zap.Int64("job_id", j.ID),
		zap.String("job_key", j.JobKey()),
		zap.String("queue", j.Queue),
		zap.String("kind", j.Kind),
		zap.Int("attempt", j.Attempt),
	}
}
