package service

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// Bounds of AskReady: a bit more than the checks of the process that is asked may take, and how much of its answer
// is read, in bytes.
const (
	askTime    = checkTime + time.Second
	maxVerdict = 64 << 10
)

// AskReady asks the ops listener at an address (host:port, loopback) whether its process can do its work now, for
// supervisors that can run a program but send no request, as in an image without a shell. nil is yes. The error says
// what is not ready, or that nobody answers there.
func AskReady(ctx context.Context, address string) error {
	if err := CheckLoopback(address); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/readyz", nil)
	if err != nil {
		return fmt.Errorf("ask %s: %w", address, err)
	}
	// A client of its own: proxies of the environment are not meant for loopback, and no connection stays open.
	client := &http.Client{Transport: &http.Transport{
		DialContext: (&net.Dialer{}).DialContext, DisableKeepAlives: true,
	}}
	reply, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("nobody answers at %s: %w", address, err)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(io.LimitReader(reply.Body, maxVerdict))
	if err != nil {
		return fmt.Errorf("read the answer of %s: %w", address, err)
	}
	var state readiness
	if err := json.Unmarshal(text, &state); err != nil || state.Ready != (reply.StatusCode == http.StatusOK) {
		return fmt.Errorf("what answers at %s is no ops listener: %s", address, reply.Status)
	}
	if !state.Ready {
		return fmt.Errorf("not ready: %v", state.NotReady)
	}
	return nil
}
