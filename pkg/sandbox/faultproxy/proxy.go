// Package faultproxy is a small TCP proxy for Redis and Postgres that loses
// replies on purpose: after a request was executed, in the middle of a
// pipeline, or for a while.
//
// It knows just enough of both protocols to tell one request and its reply from
// the next, so a fault hits the reply of the request that was meant, and the
// handshake of a new connection (HELLO, AUTH, CLIENT, SELECT; the start-up and
// authentication messages) is never hit. Encrypted connections pass, without
// one-shot faults.
package faultproxy

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	// dialLimit bounds the connection to the target.
	dialLimit = 5 * time.Second
	// acceptPause is the wait after a connection could not be taken.
	acceptPause = 10 * time.Millisecond
)

// Match says whether a request is meant. It sees the bytes of one request as
// they stand on the wire: one Redis command, or all Postgres messages up to the
// one that earns the reply. Nil means any request.
type Match func(request []byte) bool

// Contains matches requests that hold a text, upper and lower case alike:
// "FCALL", "COMMIT".
func Contains(text string) Match {
	want := bytes.ToLower([]byte(text))
	return func(request []byte) bool { return bytes.Contains(bytes.ToLower(request), want) }
}

// Proxy listens on a loopback port and passes connections on to its target. It
// is safe for concurrent use.
type Proxy struct {
	listener net.Listener
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	running  sync.WaitGroup

	mu     sync.Mutex
	target string
	delay  time.Duration
	hole   chan struct{} // closed when the black hole ends; nil while there is none
	armed  []*Fault
	fired  int
	conns  map[*connection]bool
}

// Fault is an armed one-shot fault.
type Fault struct {
	proxy *Proxy
	match Match
	cut   bool
	done  chan struct{}
}

// Done is closed when the fault has happened: the request was executed and its
// reply is lost.
func (f *Fault) Done() <-chan struct{} { return f.done }

// Disarm takes the fault back, and says whether it was still waiting for its
// request.
func (f *Fault) Disarm() bool {
	f.proxy.mu.Lock()
	defer f.proxy.mu.Unlock()
	before := len(f.proxy.armed)
	f.proxy.armed = slices.DeleteFunc(f.proxy.armed, func(other *Fault) bool { return other == f })
	return len(f.proxy.armed) < before
}

// Listen starts a proxy on a free loopback port in front of a target
// (host:port). The target need not run yet.
func Listen(target string) (*Proxy, error) {
	if _, _, err := net.SplitHostPort(target); err != nil {
		return nil, fmt.Errorf("fault proxy for %q: %w", target, err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("fault proxy: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Proxy{listener: listener, ctx: ctx, cancel: cancel, target: target, conns: map[*connection]bool{}}
	p.running.Add(1)
	go p.accept()
	return p, nil
}

// Addr is the host:port that clients connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// SwallowReply arms a one-shot fault: the next matching request is executed,
// and neither its reply nor anything after it on that connection arrives, while
// the connection stays open. That is what a broken path does: bytes are never
// missing from the middle of a TCP stream.
func (p *Proxy) SwallowReply(match Match) *Fault { return p.arm(match, false) }

// CutAfterExecution arms a one-shot fault: the next matching request is
// executed, then its connection is closed without the reply.
func (p *Proxy) CutAfterExecution(match Match) *Fault { return p.arm(match, true) }

func (p *Proxy) arm(match Match, cut bool) *Fault {
	fault := &Fault{proxy: p, match: match, cut: cut, done: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = append(p.armed, fault)
	return fault
}

// take finds the fault that was armed first for a request, and disarms it.
func (p *Proxy) take(request []byte) *Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, fault := range p.armed {
		if fault.match == nil || fault.match(request) {
			p.armed = slices.Delete(p.armed, i, i+1)
			return fault
		}
	}
	return nil
}

func (p *Proxy) happened(fault *Fault) {
	p.mu.Lock()
	p.fired++
	p.mu.Unlock()
	close(fault.done)
}

// Fired counts the one-shot faults that have happened.
func (p *Proxy) Fired() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fired
}

// Delay holds back each piece of reply by d from now on; 0 ends it.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// BlackHole stops all bytes in both directions while it is on. Connections stay
// open, new ones are taken and get no answer. What was sent meanwhile arrives
// when it ends, as it would after the network has healed.
func (p *Proxy) BlackHole(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case on && p.hole == nil:
		p.hole = make(chan struct{})
	case !on && p.hole != nil:
		close(p.hole)
		p.hole = nil
	}
}

// Retarget sends new connections elsewhere; those that are open stay.
func (p *Proxy) Retarget(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// CloseAll closes the open connections and says how many there were. New ones
// are taken as before.
func (p *Proxy) CloseAll() int {
	p.mu.Lock()
	open := make([]*connection, 0, len(p.conns))
	for c := range p.conns {
		open = append(open, c)
	}
	p.mu.Unlock()
	for _, c := range open {
		c.close()
	}
	return len(open)
}

// Close stops listening, closes all connections and returns when every
// goroutine has ended. Closing twice is fine.
func (p *Proxy) Close() error {
	p.cancel()
	_ = p.listener.Close()
	p.CloseAll()
	p.running.Wait()
	return nil
}

func (p *Proxy) accept() {
	defer p.running.Done()
	for {
		client, err := p.listener.Accept()
		if err != nil {
			// Out of file descriptors, say: others may give some back.
			if !wait(p.ctx, acceptPause) {
				return
			}
			continue
		}
		p.running.Add(1)
		go p.serve(client)
	}
}

func (p *Proxy) serve(client net.Conn) {
	defer p.running.Done()
	defer client.Close()
	if !p.passable(p.ctx) {
		return
	}
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	dialer := net.Dialer{Timeout: dialLimit}
	server, err := dialer.DialContext(p.ctx, "tcp", target)
	if err != nil {
		return
	}
	defer server.Close()
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	c := &connection{proxy: p, ctx: ctx, cancel: cancel, client: client, server: server}
	p.mu.Lock()
	p.conns[c] = true
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.conns, c)
		p.mu.Unlock()
	}()
	if p.ctx.Err() == nil {
		c.run()
	}
}

// passable waits until no black hole is on, and says whether the context lived
// that long.
func (p *Proxy) passable(ctx context.Context) bool {
	for {
		p.mu.Lock()
		hole := p.hole
		p.mu.Unlock()
		if hole == nil {
			return ctx.Err() == nil
		}
		select {
		case <-hole:
		case <-ctx.Done():
			return false
		}
	}
}

// late waits out the delay of a reply.
func (p *Proxy) late(ctx context.Context) bool {
	p.mu.Lock()
	delay := p.delay
	p.mu.Unlock()
	return delay <= 0 || wait(ctx, delay)
}

// wait says whether the context lived through d.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
