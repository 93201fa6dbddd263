package service

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/stockpipe/stockpipe/pkg/access"
)

// Bounds of AskReady: a bit more than the checks of the process that is asked may take, and how much of its answer
// is read, in bytes.
const (
	askTime    = checkTime + time.Second
	maxVerdict = 64 << 10
)

// AskReady asks the ops listener at an address (host:port) whether its process can do its work now, for supervisors
// that can run a program but send no request, as in an image without a shell. The address is the one that the process
// was told: of one that stands for all (0.0.0.0) loopback is asked. It needs no token; with a certificate it accepts
// only that one. nil is yes. The error says what is not ready, or that nobody answers there.
func AskReady(ctx context.Context, address string, certificate *access.Certificate) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("address %q: write it as host:port, for example 127.0.0.1:8081: %w", address, err)
	}
	if ip := net.ParseIP(host); host == "" || ip.IsUnspecified() {
		address = net.JoinHostPort("localhost", port)
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	// A client of its own: proxies of the environment are not meant for it, and no connection stays open.
	transport := &http.Transport{DialContext: (&net.Dialer{}).DialContext, DisableKeepAlives: true}
	scheme := "http://"
	if certificate != nil {
		scheme, transport.TLSClientConfig = "https://", certificate.Same()
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+address+"/readyz", nil)
	if err != nil {
		return fmt.Errorf("ask %s: %w", address, err)
	}
	client := &http.Client{Transport: transport}
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
