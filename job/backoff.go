package job

import (
	"math/rand/v2"
	"time"
)

// Policy is what applies to a kind where the job itself says nothing.
type Policy struct {
	MaxAttempts int           // runs before the job becomes a dead letter, >= 1
	Timeout     time.Duration // of one run, > 0
	Backoff     Backoff
}

// Backoff says how long a failed job waits before attempt n+1.
type Backoff struct {
	Base     time.Duration   // wait after the first attempt; doubled after each further one
	Cap      time.Duration   // longest wait
	Jitter   float64         // share of the wait that is added at random, 0 to 1
	Schedule []time.Duration // explicit waits instead of Base; the last one repeats
}

// Rand gives a number in [0, 1).
type Rand func() float64

// RandomJitter is the Rand of production.
func RandomJitter() float64 { return rand.Float64() }

// Delay is the wait after attempt n failed (n >= 1): min(Cap, Base * 2^(n-1)),
// or the schedule's n-th entry, and on top of it up to Jitter of that. It is
// never shorter than the bare wait.
func (b Backoff) Delay(n int, rnd Rand) time.Duration {
	n = max(n, 1)
	var d time.Duration
	switch {
	case len(b.Schedule) > 0:
		d = b.Schedule[min(n, len(b.Schedule))-1]
	case n > 62 || b.Base > b.Cap>>(n-1): // the shift below would pass Cap or overflow
		d = b.Cap
	default:
		d = b.Base << (n - 1)
	}
	return d + time.Duration(float64(d)*b.Jitter*rnd())
}
