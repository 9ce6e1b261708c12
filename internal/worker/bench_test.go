package worker

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"queued/internal/store"
	"queued/job"
)

// endless gives n jobs as fast as they are asked for.
type endless struct {
	left   int
	id     int64
	done   atomic.Int64
	claims int
	finish int
}

func (e *endless) Claim(_ context.Context, req store.ClaimRequest) (store.Claimed, error) {
	e.claims++
	n := min(req.Wants[0].Limit, e.left)
	e.left -= n
	now := time.Now()
	c := store.Claimed{Token: int64(e.claims), More: n == req.Wants[0].Limit}
	for range n {
		e.id++
		c.Jobs = append(c.Jobs, &job.Job{ID: e.id, Queue: req.Wants[0].Queue, Kind: "noop", Payload: []byte("{}"), Attempt: 1, Token: c.Token, AvailableAt: now, CreatedAt: now, ClaimedAt: now})
	}
	return c, nil
}

func (e *endless) Finish(_ context.Context, f store.Finish) ([]store.Fate, error) {
	e.finish++
	fates := make([]store.Fate, len(f.Writes))
	for i := range fates {
		fates[i] = store.Recorded
	}
	e.done.Add(int64(len(fates)))
	return fates, nil
}

func (e *endless) Renew(context.Context, int64, time.Duration, []int64) ([]int64, error) {
	return nil, nil
}
func (e *endless) Verify(context.Context, []store.Held) ([]store.Held, error) { return nil, nil }
func (e *endless) KnownKinds(context.Context) ([]string, error)               { return nil, nil }

// BenchmarkPool is the cost of a job in the client: everything but the store.
func BenchmarkPool(b *testing.B) {
	for _, workers := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			e := &endless{left: b.N}
			p, err := New(Config{
				Lanes:    []Lane{{Queue: "q", Workers: workers}},
				Handlers: handlers{"noop": job.HandlerFunc(func(context.Context, *job.Job) error { return nil })},
				Owner:    1,
				Drain:    true,
			}, e)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.ResetTimer()
			if got := p.Run(context.Background()); got != ReasonDrained {
				b.Fatalf("got %q, want %q", got, ReasonDrained)
			}
			b.StopTimer()
			if got := int(e.done.Load()); got != b.N {
				b.Fatalf("got %d jobs done, want %d", got, b.N)
			}
			b.ReportMetric(float64(e.finish)/float64(b.N), "finishes/job")
			b.ReportMetric(float64(e.claims)/float64(b.N), "claims/job")
		})
	}
}
