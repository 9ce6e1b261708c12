package daemon

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"go.uber.org/zap"

	"queued/internal/config"
	"queued/internal/handlers"
	"queued/job"
)

// Registry makes the handlers of the configured kinds, and of the Go program's
// own. Its error is about the configuration and names everything that is wrong.
func Registry(c *config.Config, own map[string]job.Handler, log *zap.Logger) (*handlers.Registry, error) {
	var kinds []handlers.Kind
	policies := map[string]job.Policy{}
	var errs []error
	for _, k := range c.Kinds {
		if k.Handler == config.HandlerGo {
			policies[k.Name] = k.Policy
			if own[k.Name] == nil {
				errs = append(errs, fmt.Errorf("kind %q: this program has no Go handler for it", k.Name))
			}
			continue
		}
		kinds = append(kinds, handlers.Kind{Name: k.Name, Type: k.Handler, Policy: k.Policy, Exec: handlers.Exec(k.Exec)})
	}
	r, err := handlers.New(kinds, log)
	if err != nil {
		return nil, errors.Join(append(errs, err)...)
	}
	for _, name := range slices.Sorted(maps.Keys(own)) {
		p, ok := policies[name]
		if !ok {
			p = c.Defaults
		}
		if err := r.Add(name, own[name], p); err != nil {
			errs = append(errs, fmt.Errorf("kind %q of the Go program: %w", name, err))
		}
	}
	return r, errors.Join(errs...)
}
