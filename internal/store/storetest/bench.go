package storetest

import (
	"fmt"
	"testing"

	"queued/internal/store"
	"queued/job"
)

// BenchmarkDrain claims and finishes b.N jobs, batch by batch, with the store's
// usual durability, and reports jobs/s.
func BenchmarkDrain(b *testing.B, d Driver) {
	for _, batch := range []int{50, 200, 500} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			f := newFixture(b, d)
			for n := b.N; n > 0; n -= 1000 {
				jobs := make([]job.New, min(n, 1000))
				for i := range jobs {
					jobs[i] = job.New{Kind: "noop", Payload: []byte(`{"to":"someone@example.com","n":12345}`)}
				}
				f.enqueue(jobs...)
			}
			writes := make([]job.Write, 0, batch)
			b.ResetTimer()
			for left := b.N; left > 0; {
				c := f.claim(batch)
				if len(c.Jobs) == 0 {
					b.Fatalf("claim found none of %d jobs", left)
				}
				writes = writes[:0]
				for _, j := range c.Jobs {
					writes = append(writes, done(j, ""))
				}
				fates, err := f.Finish(b.Context(), store.Finish{
					Writes: writes, Settled: []int64{c.Token}, Owner: owner,
					Counts: []store.Count{{Queue: queueA, Kind: "noop", Done: int64(len(writes))}},
				})
				if err != nil {
					b.Fatal(err)
				}
				f.wantFates(fates, len(writes), store.Recorded)
				left -= len(c.Jobs)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
		})
	}
}
