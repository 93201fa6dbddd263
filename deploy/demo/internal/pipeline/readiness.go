package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
)

const (
	readyPatience = 2 * time.Minute // until everything is ready: a kept folder may have to be recovered first
	readyPause    = 50 * time.Millisecond
	firstNotice   = 3 * time.Second // of waiting, after which the user is told what for
	nextNotice    = 10 * time.Second
)

// awaitReady waits until every role says that it can do its work. The producers are ready only once their shards
// are open, which a takeover of the reconciler does: nobody has to help.
func (p *Pipeline) awaitReady() error {
	ctx, cancel := context.WithTimeout(p.ctx, readyPatience)
	defer cancel()
	p.mu.Lock()
	roles := slices.Clone(p.roles)
	p.mu.Unlock()
	notice := time.Now().Add(firstNotice)
	for _, r := range roles {
		for {
			reason := readiness(ctx, r.place.Ops)
			if reason == "" {
				break
			}
			if now := time.Now(); now.After(notice) && ctx.Err() == nil {
				p.config.Say("waiting for %s: %s", r.name, reason)
				notice = now.Add(nextNotice)
			}
			if !pause(ctx, readyPause) {
				return notReady(p.ctx, r, reason)
			}
		}
	}
	return nil
}

func notReady(ctx context.Context, r *role, reason string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%s is not ready after %v: %s: %s", r.name, readyPatience, reason, r.journal.tail())
}

// readiness asks /readyz and is empty when the role is ready, otherwise the reason.
func readiness(ctx context.Context, ops string) string {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, ops+"/readyz", nil)
	if err != nil {
		return err.Error()
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusOK {
		_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<16)) // lets the connection be used again
		return ""
	}
	var body struct {
		NotReady map[string]string `json:"not_ready"`
	}
	err = json.NewDecoder(io.LimitReader(response.Body, 1<<16)).Decode(&body)
	if err != nil || len(body.NotReady) == 0 {
		return errors.Join(fmt.Errorf("status %d", response.StatusCode), err).Error()
	}
	var reasons []string
	for name, reason := range body.NotReady {
		reasons = append(reasons, name+": "+reason)
	}
	slices.Sort(reasons)
	return strings.Join(reasons, "; ")
}

// pause waits, and says whether it waited to the end.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
