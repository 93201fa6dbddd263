package faultproxy

import (
	"context"
	"net"
	"sync"
)

const (
	chunk = 64 << 10
	// largestMessage bounds what is held until a message is complete. Beyond it
	// the connection passes as opaque bytes.
	largestMessage = 64 << 20
)

// connection is a client, its connection to the target, and where both stand.
type connection struct {
	proxy  *Proxy
	ctx    context.Context
	cancel context.CancelFunc
	client net.Conn
	server net.Conn

	mu       sync.Mutex
	protocol protocol
	settled  bool // the handshake is over
	asked    int  // requests passed to the server that earn a reply
	answered int  // replies received in full
	victims  []victim
	muted    bool // nothing goes to the client any more
}

// victim is a request whose reply will be lost.
type victim struct {
	number int // counted as asked
	fault  *Fault
}

func (c *connection) close() {
	c.cancel()
	_ = c.client.Close()
	_ = c.server.Close()
}

// run passes bytes until one side is gone. It returns with both pumps ended.
func (c *connection) run() {
	defer c.close()
	requests := make(chan struct{})
	go func() {
		defer close(requests)
		c.passRequests()
	}()
	cut := c.passReplies()
	if !cut && c.silent() {
		// Behind a broken path the client does not learn that the server is gone.
		select {
		case <-requests:
		case <-c.ctx.Done():
		}
	}
	c.close()
	<-requests
}

// passRequests pumps from the client to the server. When the client hangs up
// the server is told, and may finish what it has.
func (c *connection) passRequests() {
	var held []byte
	buffer := make([]byte, chunk)
	for {
		n, err := c.client.Read(buffer)
		if n > 0 {
			held = append(held, buffer[:n]...)
			if !c.proxy.passable(c.ctx) {
				return
			}
			used := c.noteRequests(held)
			if _, err := c.server.Write(held[:used]); err != nil {
				return
			}
			held = append(held[:0], held[used:]...)
		}
		if err != nil {
			if half, ok := c.server.(*net.TCPConn); ok && c.proxy.passable(c.ctx) {
				_ = half.CloseWrite()
			}
			return
		}
	}
}

// noteRequests counts the complete messages at the start of the bytes, marks
// those whose reply is to be lost, and says how many bytes may pass.
func (c *connection) noteRequests(held []byte) (used int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.protocol == nil {
		c.protocol = detect(held)
	}
	for used < len(held) {
		m, err := c.protocol.request(held[used:])
		if err != nil || (m.size == 0 && len(held)-used > largestMessage) {
			c.protocol = opaque{}
			return len(held)
		}
		if m.size == 0 {
			return used
		}
		used += m.size
		if !m.earnsReply {
			continue
		}
		c.asked++
		if m.handshake && !c.settled {
			continue
		}
		c.settled = true
		if fault := c.proxy.take(m.whole); fault != nil {
			c.victims = append(c.victims, victim{c.asked, fault})
		}
	}
	return used
}

// passReplies pumps from the server to the client, and says whether it ended
// because the connection is to be cut.
func (c *connection) passReplies() (cut bool) {
	var held []byte
	buffer := make([]byte, chunk)
	for {
		n, err := c.server.Read(buffer)
		if n > 0 {
			held = append(held, buffer[:n]...)
			pass, used, cut := c.noteReplies(held)
			if pass > 0 && !(c.proxy.late(c.ctx) && c.proxy.passable(c.ctx)) {
				return false
			}
			if _, err := c.client.Write(held[:pass]); err != nil || cut {
				return cut
			}
			held = append(held[:0], held[used:]...)
		}
		if err != nil {
			// What came before the end is passed even if it is half a message, and
			// no end is seen through a black hole.
			if c.proxy.passable(c.ctx) && len(held) > 0 && !c.silent() {
				_, _ = c.client.Write(held)
			}
			return false
		}
	}
}

// noteReplies counts the complete replies at the start of the bytes. It says
// how many bytes go to the client, how many are dealt with, and whether the
// connection is to be cut now.
func (c *connection) noteReplies(held []byte) (pass, used int, cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for used < len(held) {
		m, err := c.framing().reply(held[used:])
		if err != nil || (m.size == 0 && len(held)-used > largestMessage) {
			c.protocol = opaque{}
			m = message{size: len(held) - used}
		}
		if m.size == 0 {
			return pass, used, false
		}
		used += m.size
		if len(c.victims) > 0 && c.victims[0].number == c.answered+1 && m.partOfReply {
			c.muted = true
		}
		if !c.muted {
			pass = used
		}
		if !m.earnsReply {
			continue
		}
		c.answered++
		if len(c.victims) > 0 && c.victims[0].number == c.answered {
			fault := c.victims[0].fault
			c.victims = c.victims[1:]
			c.proxy.happened(fault)
			if fault.cut {
				return pass, used, true
			}
		}
	}
	return pass, used, false
}

// framing is the protocol, or opaque bytes while the client has said nothing.
func (c *connection) framing() protocol {
	if c.protocol == nil {
		return opaque{}
	}
	return c.protocol
}

func (c *connection) silent() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.muted
}
