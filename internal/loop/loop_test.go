package loop

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

func TestSleep_EndsByTimeWakeOrCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		if !Sleep(ctx, time.Second, nil) || time.Since(began) != time.Second {
			t.Errorf("got an end after %s, want 1s", time.Since(began))
		}
		wake := make(chan struct{}, 1)
		wake <- struct{}{}
		began = time.Now()
		if !Sleep(ctx, time.Second, wake) || time.Since(began) != 0 {
			t.Errorf("got an end after %s, want at once", time.Since(began))
		}
		go cancel()
		if Sleep(ctx, time.Second, wake) || time.Since(began) != 0 {
			t.Errorf("got an end after %s, want at once and false", time.Since(began))
		}
		if Sleep(ctx, 0, nil) {
			t.Error("got true after the end of the context, want false")
		}
	})
}

func TestBackoff_DoublesUpToItsCapWithJitter(t *testing.T) {
	b := Backoff{Min: 100 * time.Millisecond, Max: time.Second}
	for range 2 {
		for i, want := range []time.Duration{100, 200, 400, 800, 1000, 1000} {
			want *= time.Millisecond
			if got := b.Next(); got < want*3/4 || got > want*5/4 {
				t.Errorf("try %d: got %s, want %s and a quarter at most", i+1, got, want)
			}
		}
		b.Reset()
	}
}

func TestOutage_IsSaidOnceAMinuteAndItsEndOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		states      []bool // one a second, true: works
		begun, over int
	}{
		"never":           {[]bool{true, true, true}, 0, 0},
		"short":           {[]bool{true, false, true, true}, 1, 1},
		"flapping":        {[]bool{false, true, false, true, false, true, false, true}, 1, 1},
		"long":            {append(make([]bool, 150), true, true), 3, 1},
		"does not end":    {make([]bool, 10), 1, 0},
		"again, later":    {append(append([]bool{false, true}, always(70)...), false, true), 2, 2},
		"again, too soon": {append(append([]bool{false, true}, always(5)...), false, true), 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				core, logs := observer.New(zapcore.InfoLevel)
				o := Outage{Log: zap.New(core), Begun: "begun", Over: "over"}
				for _, ok := range tc.states {
					if ok {
						o.OK()
					} else {
						o.Failed(errors.New("away"))
					}
					time.Sleep(time.Second)
				}
				if begun, over := logs.FilterMessage("begun").Len(), logs.FilterMessage("over").Len(); begun != tc.begun || over != tc.over {
					t.Errorf("got %d lines of its begin and %d of its end, want %d and %d", begun, over, tc.begun, tc.over)
				}
			})
		})
	}
}

func always(n int) []bool {
	list := make([]bool, n)
	for i := range list {
		list[i] = true
	}
	return list
}
