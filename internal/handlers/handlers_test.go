package handlers

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"queued/job"
)

func TestRegistry_KnowsItsKinds(t *testing.T) {
	r, err := New([]Kind{
		{Name: "b", Type: TypeLog, Policy: job.Policy{MaxAttempts: 3}},
		{Name: "a", Type: TypeExec, Exec: Exec{Command: []string{"/bin/true"}}},
	}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := r.StopTime(), DefaultKillGrace+killTime; got != want {
		t.Errorf("got stop time %s, want %s", got, want)
	}
	if d := cmp.Diff([]string{"a", "b"}, r.Kinds()); d != "" {
		t.Errorf("kinds (-want +got):\n%s", d)
	}
	if h, p, ok := r.Lookup("b"); h == nil || p.MaxAttempts != 3 || !ok {
		t.Errorf("got %v, %v, %v for a known kind", h, p, ok)
	}
	for _, kind := range []string{"", "B", "b "} {
		if _, _, ok := r.Lookup(kind); ok {
			t.Errorf("kind %q is known", kind)
		}
	}
}

func TestRegistry_ReportsAllThatIsWrong(t *testing.T) {
	_, err := New([]Kind{{Name: "a", Type: "lgo"}, {Name: "b", Type: TypeExec}, {Name: "", Type: TypeLog}, {Name: "c", Type: TypeLog}, {Name: "c", Type: TypeLog}}, zap.NewNop())
	has(t, err, `kind "a": type "lgo": must be one of [exec log]`, `kind "b": command: must not be empty`, `kind "": kind: must not be empty`, `kind "c": is there twice`)
}

func TestLog_PayloadAtDebugOnly(t *testing.T) {
	for level, want := range map[zapcore.Level]map[string]any{
		zapcore.InfoLevel:  {"job_id": int64(17), "job_key": "order-1", "queue": "mail", "kind": "k", "attempt": int64(2), "payload_bytes": int64(7)},
		zapcore.DebugLevel: {"job_id": int64(17), "job_key": "order-1", "queue": "mail", "kind": "k", "attempt": int64(2), "payload_bytes": int64(7), "payload": `{"a":1}`},
	} {
		core, logs := observer.New(level)
		if _, err := newLog(zap.New(core)).Run(t.Context(), testJob()); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, logs.All()[0].ContextMap()); d != "" || logs.Len() != 1 {
			t.Errorf("%s: %d lines, fields (-want +got):\n%s", level, logs.Len(), d)
		}
	}
}

func testJob() *job.Job {
	return &job.Job{ID: 17, Queue: "mail", Kind: "k", Key: "order-1", Payload: []byte(`{"a":1}`), Attempt: 2}
}

func has(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("got no error, want %q", parts)
		return
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("got error %q, want %q in it", err, p)
		}
	}
}
