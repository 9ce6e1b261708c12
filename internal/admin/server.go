package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
)

// pingTimeout bounds the look at the database that /readyz takes, and readyFor is
// how long its answer is given to others.
const (
	pingTimeout = 2 * time.Second
	readyFor    = time.Second
)

// Health answers whether the daemon is well.
type Health interface {
	// Alive returns what keeps the daemon from doing its work until it is started
	// again, nil for nothing: a loop that does not turn. A database that is away is none of it.
	Alive() []string
	// Ready returns what keeps it from running jobs just now, nil for nothing.
	Ready(ctx context.Context) []string
}

// Server serves /metrics, /healthz and /readyz.
type Server struct {
	listener net.Listener
	http     *http.Server
	served   chan error
}

// Listen takes the address, so that one that is taken is an error here and not
// some time later; Serve answers.
func Listen(ctx context.Context, addr string, m *Metrics, h Health, log *zap.Logger) (*Server, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen for metrics and health: %w", err)
	}
	errorLog, err := zap.NewStdLogAt(log, zap.DebugLevel)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.reg, promhttp.HandlerOpts{
		Registry: m.reg, MaxRequestsInFlight: 4, Timeout: 10 * time.Second,
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, h.Alive()) })
	ready := &readiness{health: h}
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) { answer(w, ready.check(r.Context())) })
	return &Server{
		listener: l,
		served:   make(chan error, 1),
		http: &http.Server{
			Handler: mux, ErrorLog: errorLog, MaxHeaderBytes: 16 << 10,
			ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
		},
	}, nil
}

// Addr is the address that was taken.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Serve answers until Stop.
func (s *Server) Serve() {
	err := s.http.Serve(s.listener)
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	s.served <- err
}

// Stop ends what Serve does and waits for answers under way until ctx ends.
func (s *Server) Stop(ctx context.Context) error {
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, s.http.Close())
	}
	return errors.Join(err, <-s.served)
}

func answer(w http.ResponseWriter, reasons []string) {
	body := struct {
		Status  string   `json:"status"`
		Reasons []string `json:"reasons,omitempty"`
	}{"ok", reasons}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if len(reasons) > 0 {
		body.Status = "unavailable"
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(body) // the client went away
}

// readiness asks the database for all who want to know at the same time once.
type readiness struct {
	health Health

	mu      sync.Mutex
	at      time.Time
	reasons []string
}

func (r *readiness) check(ctx context.Context) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.at) < readyFor {
		return r.reasons
	}
	// Not the client's: one that hangs up must not make the answer of the others.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pingTimeout)
	defer cancel()
	r.reasons = r.health.Ready(ctx)
	r.at = time.Now()
	return r.reasons
}
