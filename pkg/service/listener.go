package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/stockpipe/stockpipe/pkg/access"
)

// Bounds of every listener.
const (
	headerTimeout  = 5 * time.Second // to send the head of a request
	idleTimeout    = 2 * time.Minute // of a kept connection
	maxHeaderBytes = 16 << 10
	// finishTime is how long requests in flight may take after the stop.
	finishTime = 5 * time.Second
)

// A Listener serves HTTP on an address that was bound before anything depended on it.
type Listener struct {
	name   string
	scheme string
	socket net.Listener
	server *http.Server
	silent silent
}

// A Door is how a listener is kept. The zero Door is for loopback only, and lets everybody there in.
type Door struct {
	Tokens      *access.Tokens      // nil: nobody is asked. The handler asks; the listener sees that it can
	Certificate *access.Certificate // nil: no TLS
	Plain       bool                // no TLS although others can reach it: something before it ends TLS
}

// Check refuses an address (host:port) that others than this machine could reach, unless they have to show a token
// and nobody on the way can read it.
func (d Door) Check(address string) error {
	return CheckReach(address, d.Tokens != nil, d.Certificate != nil || d.Plain)
}

// silent are the connections that have not sent a byte yet. Clients open some ahead of need, and the server would
// wait 5 s for each at its stop although nobody asked anything on it.
type silent struct {
	mu    sync.Mutex
	conns map[net.Conn]struct{}
	ended bool
}

func (s *silent) note(c net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case state != http.StateNew:
		delete(s.conns, c)
	case s.ended:
		_ = c.Close()
	default:
		s.conns[c] = struct{}{}
	}
}

// cut closes them and whoever still comes; a request that is on its way finds the door shut, as it would a moment
// later.
func (s *silent) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for c := range s.conns {
		_ = c.Close()
	}
}

// Listen binds the address at once, so that a taken port or a bad address is an error at start and callers may
// connect as soon as it returns. An address beyond loopback needs a door that is kept (Door.Check).
func Listen(name, address string, handler http.Handler, door Door) (*Listener, error) {
	if err := door.Check(address); err != nil {
		return nil, fmt.Errorf("listen for %s: %w", name, err)
	}
	socket, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for %s: %w (is another process on that port? choose another address)", name, err)
	}
	// The name localhost may point anywhere; what was bound is what counts.
	if err := door.Check(socket.Addr().String()); err != nil {
		return nil, errors.Join(fmt.Errorf("listen for %s: %w", name, err), socket.Close())
	}
	l := &Listener{name: name, scheme: "http", socket: socket, silent: silent{conns: map[net.Conn]struct{}{}}}
	l.server = &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		// What it would print are broken connections of clients, and libraries do not log.
		ErrorLog:  log.New(io.Discard, "", 0),
		ConnState: l.silent.note,
	}
	if door.Certificate != nil {
		l.scheme, l.server.TLSConfig = "https", door.Certificate.Server()
	}
	return l, nil
}

// CheckReach refuses an address that is not host:port with a port, and one beyond loopback unless callers are told
// apart there (tokens) and cannot be overheard (encrypted). The error says what is missing.
func CheckReach(address string, tokens, encrypted bool) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("address %q: write it as host:port, for example 127.0.0.1:8080: %w", address, err)
	}
	if port == "" {
		return fmt.Errorf("address %q: name the port, for example 127.0.0.1:8080", address)
	}
	if ip := net.ParseIP(host); ip.IsLoopback() || strings.EqualFold(host, "localhost") || tokens && encrypted {
		return nil
	}
	var missing []string
	if !tokens {
		missing = append(missing, "--token-file, so that callers are told apart")
	}
	if !encrypted {
		missing = append(missing, "--tls-cert and --tls-key, so that tokens cannot be read on the way (or --unsafe-plain-listen behind a proxy that ends TLS)")
	}
	return fmt.Errorf("address %q is open to other machines: give %s; or use 127.0.0.1:%s", address, strings.Join(missing, ", and "), port)
}

// Addr is host:port as it was bound; a wished port 0 has become a real one.
func (l *Listener) Addr() string { return l.socket.Addr().String() }

// URL is http://host:port, https with a certificate.
func (l *Listener) URL() string { return l.scheme + "://" + l.Addr() }

// Part is the listener as a part of a process, with room for the requests in flight.
func (l *Listener) Part() Part {
	return Part{Name: l.name, Run: l.Run, Grace: finishTime + time.Second}
}

// Run serves until ctx ends. Then it takes no more requests and lets those in flight finish for 5 s; what is
// still open then is cut, which is an error.
func (l *Listener) Run(ctx context.Context) error {
	served := make(chan error, 1)
	go func() { served <- l.serve() }() // received below in both cases
	select {
	case err := <-served:
		return fmt.Errorf("serve on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTime)
	defer cancel()
	l.silent.cut()
	err := l.server.Shutdown(late)
	if err != nil {
		err = errors.Join(fmt.Errorf("finish the requests on %s: %w", l.Addr(), err), l.server.Close())
	}
	if ended := <-served; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, fmt.Errorf("serve on %s: %w", l.Addr(), ended))
	}
	return err
}

func (l *Listener) serve() error {
	if l.server.TLSConfig != nil {
		return l.server.ServeTLS(l.socket, "", "") // the certificate stands in the configuration
	}
	return l.server.Serve(l.socket)
}

// Close gives up an address that Run was never called for. After Run it is harmless.
func (l *Listener) Close() error {
	if err := l.socket.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
