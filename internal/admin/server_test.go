package admin

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
)

// fakeHealth is a Health that answers what its fields say.
type fakeHealth struct {
	alive, ready []string
	asked        atomic.Int64
}

func (f *fakeHealth) Alive() []string { return f.alive }

func (f *fakeHealth) Ready(context.Context) []string {
	f.asked.Add(1)
	return f.ready
}

// serve starts a server that ends with the test.
func serve(t *testing.T, h Health) *Server {
	t.Helper()
	s, err := Listen(t.Context(), "127.0.0.1:0", busy(), h, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	go s.Serve()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := s.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return s
}

func get(t *testing.T, s *Server, method, path string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.Addr()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(body))
}

func TestServer_SaysWhyItIsNotWell(t *testing.T) {
	t.Parallel()
	h := &fakeHealth{ready: []string{"waiting for the database"}}
	s := serve(t, h)
	tests := []struct {
		method, path string
		code         int
		body         string
	}{
		{"GET", "/healthz", 200, `{"status":"ok"}`},
		{"GET", "/readyz", 503, `{"status":"unavailable","reasons":["waiting for the database"]}`},
		{"POST", "/readyz", 405, "Method Not Allowed"},
		{"GET", "/", 404, "404 page not found"},
	}
	for _, tt := range tests {
		code, body := get(t, s, tt.method, tt.path)
		if code != tt.code || body != tt.body {
			t.Errorf("%s %s: got %d %s, want %d %s", tt.method, tt.path, code, body, tt.code, tt.body)
		}
	}
	code, body := get(t, s, "GET", "/metrics")
	if code != 200 || !strings.Contains(body, `queued_build_info{goversion="go1.26",revision="abc",version="v1.2.3"} 1`) {
		t.Errorf("/metrics: got %d %.200s", code, body)
	}
}

func TestServer_AsksTheDatabaseOnceForAll(t *testing.T) {
	t.Parallel()
	h := &fakeHealth{}
	r := &readiness{health: h}
	for range 100 {
		if got := r.check(t.Context()); got != nil {
			t.Fatalf("got %v, want nothing", got)
		}
	}
	if n := h.asked.Load(); n > 3 {
		t.Errorf("asked %d times within a moment, want once a second", n)
	}
}

func TestListen_TakenAddressIsAnErrorAtOnce(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeHealth{})
	_, err := Listen(t.Context(), s.Addr(), busy(), &fakeHealth{}, zap.NewNop())
	if err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("got error %v, want address already in use", err)
	}
}
