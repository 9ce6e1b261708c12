package daemon

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"
)

// stopStack takes down what was built up, in reverse.
type stopStack struct {
	log   *zap.Logger
	steps []stopStep
}

type stopStep struct {
	name string
	stop func(context.Context) error
}

// push adds a step. What it stops may use everything that was pushed before.
func (s *stopStack) push(name string, stop func(context.Context) error) {
	s.steps = append(s.steps, stopStep{name, stop})
}

// loop runs f until its step comes, which waits for it.
func (s *stopStack) loop(name string, f func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f(ctx)
	}()
	s.push(name, func(ctx context.Context) error {
		cancel()
		select {
		case <-ended:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

// run takes all steps, whatever goes wrong. One deadline, that of ctx, holds for
// all of them: steps that come after it are taken without waiting.
func (s *stopStack) run(ctx context.Context) error {
	var errs []error
	for len(s.steps) > 0 {
		last := s.steps[len(s.steps)-1]
		s.steps = s.steps[:len(s.steps)-1]
		s.log.Debug("stopping", zap.String("step", last.name))
		if err := last.stop(ctx); err != nil {
			errs = append(errs, fmt.Errorf("stop %s: %w", last.name, err))
		}
	}
	return errors.Join(errs...)
}
