// Package loop has what every loop of the daemon that talks to the database
// needs: to wait, to back off, and to say once that it waits and once that it is over.
package loop

import (
	"context"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"
)

// Sleep waits for d, or less when ctx ends or wake gives a value, and reports
// whether ctx is still alive. wake may be nil.
func Sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) bool {
	if ctx.Err() != nil {
		return false
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-wake:
	case <-t.C:
	}
	return true
}

// Jitter is d changed at random by up to share of it, shorter or longer.
func Jitter(d time.Duration, share float64) time.Duration {
	return d + time.Duration(float64(d)*share*(2*rand.Float64()-1))
}

// Backoff is the wait between tries: Min, then twice as long each time up to
// Max, each a quarter longer or shorter at random so that daemons don't come back together.
type Backoff struct {
	Min, Max time.Duration
	last     time.Duration
}

// Next is the next wait.
func (b *Backoff) Next() time.Duration {
	b.last = min(max(2*b.last, b.Min), b.Max)
	return Jitter(b.last, 0.25)
}

// Reset starts again at Min.
func (b *Backoff) Reset() { b.last = 0 }

// repeatLog is how often an outage that lasts is logged again.
const repeatLog = time.Minute

// Outage logs the failures of one loop without flooding: that it has begun, once
// a minute that it lasts, and that it is over. One that flaps is logged once a
// minute. It belongs to one goroutine.
type Outage struct {
	Log         *zap.Logger
	Begun, Over string // what to say

	since, logged time.Time
	said          bool // this one was logged
}

// Failed notes a failure.
func (o *Outage) Failed(err error) {
	now := time.Now()
	if o.since.IsZero() {
		o.since = now
	}
	if o.logged.IsZero() || now.Sub(o.logged) >= repeatLog {
		o.logged, o.said = now, true
		o.Log.Warn(o.Begun, zap.Error(err), zap.Duration("for", now.Sub(o.since)))
	}
}

// OK notes a success.
func (o *Outage) OK() {
	if o.said {
		o.Log.Info(o.Over, zap.Duration("after", time.Since(o.since)))
	}
	o.since, o.said = time.Time{}, false
}
