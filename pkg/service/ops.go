package service

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/stockpipe/stockpipe/pkg/access"
)

// checkTime is how long one readiness check may take before it counts as failed.
const checkTime = 2 * time.Second

// Ops answers operators and their machines: /metrics, /healthz (the process is alive) and /readyz (it can do
// its work now). It is an http.Handler, safe for concurrent use.
//
// With tokens, /metrics asks for the scope read. /healthz and /readyz are open, because supervisors and balancers
// carry no token; without one /readyz says what is not ready and not why, which may name addresses.
type Ops struct {
	mux    *http.ServeMux
	tokens *access.Tokens

	mu     sync.Mutex
	checks map[string]func(context.Context) error
}

// NewOps makes the handler. Without checks it is ready at once; without tokens (nil) everybody may see everything.
func NewOps(metrics http.Handler, tokens *access.Tokens) *Ops {
	o := &Ops{mux: http.NewServeMux(), tokens: tokens, checks: map[string]func(context.Context) error{}}
	o.mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		if refused := tokens.Allow(r, access.Read); refused != nil {
			refuse(w, refused)
			return
		}
		metrics.ServeHTTP(w, r)
	})
	o.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]bool{"alive": true})
	})
	o.mux.HandleFunc("GET /readyz", o.ready)
	return o
}

// Check registers a condition of readiness. Its error, which must not hold secrets, is shown under its name. The
// check is safe for concurrent use and ends with its context, after 2 s, which counts as failed. The same name
// again replaces the former.
func (o *Ops) Check(name string, check func(ctx context.Context) error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.checks[name] = check
}

func (o *Ops) ServeHTTP(w http.ResponseWriter, r *http.Request) { o.mux.ServeHTTP(w, r) }

// readiness is the body of /readyz.
type readiness struct {
	Ready    bool              `json:"ready"`
	NotReady map[string]string `json:"not_ready,omitempty"` // name of the check → why
}

func (o *Ops) ready(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), checkTime)
	defer cancel()
	state := o.ask(ctx)
	if o.tokens.Allow(r, access.Read) != nil {
		for name := range state.NotReady {
			state.NotReady[name] = "ask with a token of the scope read"
		}
	}
	status := http.StatusOK
	if !state.Ready {
		status = http.StatusServiceUnavailable
	}
	answer(w, status, state)
}

// ask runs all checks at once and waits for them, so that none is left behind when the answer is out.
func (o *Ops) ask(ctx context.Context) readiness {
	o.mu.Lock()
	reasons := make(map[string]string, len(o.checks))
	var (
		wait    sync.WaitGroup
		results sync.Mutex
	)
	for name, check := range o.checks {
		wait.Go(func() {
			err := safely(ctx, check)
			if err == nil {
				return
			}
			results.Lock()
			defer results.Unlock()
			reasons[name] = err.Error()
		})
	}
	o.mu.Unlock()
	wait.Wait()
	return readiness{Ready: len(reasons) == 0, NotReady: reasons}
}

// safely makes a check that answers after its time a failed one, and a panic a reason.
func safely(ctx context.Context, check func(context.Context) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the check panicked: %v", p)
		}
	}()
	if err := check(ctx); err != nil {
		return err
	}
	return ctx.Err()
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the caller went away: nobody is left to tell
}

// refuse writes a refusal as RFC 9457 has it.
func refuse(w http.ResponseWriter, r *access.Refusal) {
	w.Header().Set("WWW-Authenticate", r.Challenge)
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(r.Status)
	_ = json.NewEncoder(w).Encode(r.Problem) // the caller went away: nobody is left to tell
}
