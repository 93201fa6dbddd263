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
	socket net.Listener
	server *http.Server
	silent silent
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
// connect as soon as it returns. Only loopback addresses are accepted (CheckLoopback).
func Listen(name, address string, handler http.Handler) (*Listener, error) {
	if err := CheckLoopback(address); err != nil {
		return nil, fmt.Errorf("listen for %s: %w", name, err)
	}
	socket, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for %s: %w (is another process on that port? choose another address)", name, err)
	}
	// The name localhost may point anywhere; what was bound is what counts.
	if bound, ok := socket.Addr().(*net.TCPAddr); !ok || !bound.IP.IsLoopback() {
		return nil, errors.Join(fmt.Errorf("listen for %s: %w", name, notLoopback(socket.Addr().String())), socket.Close())
	}
	l := &Listener{name: name, socket: socket, silent: silent{conns: map[net.Conn]struct{}{}}}
	l.server = &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		// What it would print are broken connections of clients, and libraries do not log.
		ErrorLog:  log.New(io.Discard, "", 0),
		ConnState: l.silent.note,
	}
	return l, nil
}

// CheckLoopback refuses an address (host:port) that others than this machine could reach.
func CheckLoopback(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("address %q: write it as host:port, for example 127.0.0.1:8080: %w", address, err)
	}
	if port == "" {
		return fmt.Errorf("address %q: name the port, for example 127.0.0.1:8080", address)
	}
	if ip := net.ParseIP(host); ip.IsLoopback() || strings.EqualFold(host, "localhost") {
		return nil
	}
	return notLoopback(address)
}

func notLoopback(address string) error {
	_, port, _ := net.SplitHostPort(address)
	return fmt.Errorf("address %q is open to other machines, and callers are not told apart yet (no tokens, no TLS): "+
		"use 127.0.0.1:%s, and put a proxy that authenticates in front of it", address, port)
}

// Addr is host:port as it was bound; a wished port 0 has become a real one.
func (l *Listener) Addr() string { return l.socket.Addr().String() }

// URL is http://host:port.
func (l *Listener) URL() string { return "http://" + l.Addr() }

// Part is the listener as a part of a process, with room for the requests in flight.
func (l *Listener) Part() Part {
	return Part{Name: l.name, Run: l.Run, Grace: finishTime + time.Second}
}

// Run serves until ctx ends. Then it takes no more requests and lets those in flight finish for 5 s; what is
// still open then is cut, which is an error.
func (l *Listener) Run(ctx context.Context) error {
	served := make(chan error, 1)
	go func() { served <- l.server.Serve(l.socket) }() // received below in both cases
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

// Close gives up an address that Run was never called for. After Run it is harmless.
func (l *Listener) Close() error {
	if err := l.socket.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
