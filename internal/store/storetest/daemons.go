package storetest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"queued/internal/store"
)

var daemonLaws = []law{
	{"Register_KeepsADaemonAliveForTheTTL", registerTTL},
	{"Register_AgainRenewsAndTakesNewQueuesAndKinds", registerAgain},
	{"Unregister_EndsTheDaemon", unregister},
	{"KnownKinds_AreThoseOfDaemonsThatAreOrWereAliveOfLate", knownKinds},
}

func registerTTL(t *testing.T, f *fixture) {
	d := store.Daemon{Owner: 1<<63 - 1, Host: "höst.example", PID: 4321, Version: "v1.2.3", Queues: []string{"a", "b"}, Kinds: []string{"mail", "👍"}}
	if err := f.at(t0).Register(t.Context(), d, time.Minute); err != nil {
		t.Fatal(err)
	}
	d.Started = t0
	for _, tt := range []struct {
		after time.Duration
		want  []store.Daemon
	}{{0, []store.Daemon{d}}, {time.Minute - time.Millisecond, []store.Daemon{d}}, {time.Minute, nil}} {
		got, err := f.at(t0.Add(tt.after)).LiveDaemons(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(got) == 0 {
			got = nil
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("after %s (-want +got):\n%s", tt.after, diff)
		}
	}
}

func registerAgain(t *testing.T, f *fixture) {
	d := store.Daemon{Owner: 7, Host: "h", PID: 1, Version: "v1", Queues: []string{"a"}, Kinds: []string{"x"}}
	other := store.Daemon{Owner: 5, Host: "h", PID: 2, Version: "v1", Queues: []string{}, Kinds: []string{}}
	if err := f.at(t0).Register(t.Context(), d, time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := f.at(t0.Add(time.Second)).Register(t.Context(), other, time.Hour); err != nil {
		t.Fatal(err)
	}
	d.Queues, d.Kinds = []string{"a", "c"}, []string{"y"}
	for range 2 { // the second one changes nothing
		if err := f.at(t0.Add(50*time.Second)).Register(t.Context(), d, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	got, err := f.at(t0.Add(100 * time.Second)).LiveDaemons(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d.Started, other.Started = t0, t0.Add(time.Second)
	if diff := cmp.Diff([]store.Daemon{d, other}, got); diff != "" {
		t.Errorf("daemons by start (-want +got):\n%s", diff)
	}
}

func unregister(t *testing.T, f *fixture) {
	if err := f.Register(t.Context(), store.Daemon{Owner: 7}, time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := f.Register(t.Context(), store.Daemon{Owner: 8}, time.Minute); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := f.Unregister(t.Context(), 7); err != nil {
			t.Fatal(err)
		}
		got, err := f.LiveDaemons(t.Context())
		if err != nil || len(got) != 1 || got[0].Owner != 8 {
			t.Errorf("daemons: got %v, %v, want the other one", got, err)
		}
	}
}

func knownKinds(t *testing.T, f *fixture) {
	for owner, kinds := range [][]string{{"mail", "bell"}, {"bell", "Mail"}, nil} {
		if err := f.Register(t.Context(), store.Daemon{Owner: int64(owner) + 1, Kinds: kinds}, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.at(time.Now().Add(-time.Hour)).Register(t.Context(), store.Daemon{Owner: 99, Kinds: []string{"gone"}}, time.Minute); err != nil {
		t.Fatal(err)
	}
	// One that has just stopped still counts: it may be restarting.
	if err := f.Unregister(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	got, err := f.KnownKinds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"Mail", "bell", "mail"}, got); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
}
