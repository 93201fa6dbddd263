package redisstock

import (
	"context"
	"sync"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// An answer is what one try of one operation brought.
type answer struct {
	outcome  stock.Outcome
	class    class // set when the call was refused or failed
	time     int64 // Redis time of the reply
	deadline int64 // Redis time after which this try can no longer be executed
	epoch    int64 // the epoch it was sent under
	left     bool  // the caller's context ended while the operation was under way
}

// A lane gathers the operations of one shard that go through one function.
type lane struct {
	settles bool // by the function that never takes units

	mu     sync.Mutex
	queue  []*pending
	flying int // calls under way, the lone caller's included
}

// function is the lane's in a version of the library.
func (l *lane) function(library int) string {
	if l.settles {
		return functionsOf(library).settle
	}
	return functionsOf(library).apply
}

// pending is one operation under way and the place for its answer, which belongs to the flusher until done.
type pending struct {
	op     *stock.Operation
	answer answer
	done   chan struct{} // buffered: a flusher never waits for a caller that left
}

var pendings = sync.Pool{New: func() any { return &pending{done: make(chan struct{}, 1)} }}

// wire is what one call needs to be written and sent, kept from call to call.
type wire struct {
	text event.Call
	args []any
}

var wires = sync.Pool{New: func() any { return &wire{} }}

func (d *Desk) lane(c *branch, op *stock.Operation) *lane {
	if op.Kind.Takes() {
		return &c.apply
	}
	return &c.settle
}

// submit makes one try of an operation: alone and at once when the lane is idle, else with the others.
func (d *Desk) submit(ctx context.Context, c *branch, op *stock.Operation) answer {
	l := d.lane(c, op)
	l.mu.Lock()
	if l.flying == 0 {
		l.flying++
		l.mu.Unlock()
		return d.alone(ctx, c, l, op)
	}
	if len(l.queue) >= maxQueue {
		l.mu.Unlock()
		return answer{class: class{reason: "busy", known: true}}
	}
	p := pendings.Get().(*pending)
	p.op = op
	l.queue = append(l.queue, p)
	if l.flying < flushers {
		l.flying++
		d.work.Add(1)
		go d.flush(c, l)
	}
	l.mu.Unlock()
	select {
	case <-p.done:
		a := p.answer
		p.op, p.answer = nil, answer{}
		pendings.Put(p)
		return a
	case <-ctx.Done():
		return d.abandon(l, p)
	}
}

// abandon takes an operation out of the queue when its caller leaves; if a flusher has it already, it may be
// executed.
func (d *Desk) abandon(l *lane, p *pending) answer {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, q := range l.queue {
		if q == p {
			l.queue = append(l.queue[:i], l.queue[i+1:]...)
			return answer{class: class{reason: "busy", known: true}}
		}
	}
	return answer{left: true}
}

// alone sends the single operation of a caller that found the lane idle, under its own context.
func (d *Desk) alone(ctx context.Context, c *branch, l *lane, op *stock.Operation) answer {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	p := pending{op: op}
	d.call(ctx, c, l, []*pending{&p})
	l.mu.Lock()
	l.flying--
	if len(l.queue) > 0 && l.flying == 0 {
		l.flying++
		d.work.Add(1)
		go d.flush(c, l)
	}
	l.mu.Unlock()
	return p.answer
}

// flush calls with what is queued until nothing is. Close waits for it.
func (d *Desk) flush(c *branch, l *lane) {
	defer d.work.Done()
	var batch []*pending
	for {
		l.mu.Lock()
		batch = l.take(batch[:0])
		if len(batch) == 0 {
			l.flying--
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		// The callers' contexts end their waiting, not the call that others share.
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		d.call(ctx, c, l, batch)
		cancel()
		for _, p := range batch {
			p.done <- struct{}{}
		}
	}
}

// take moves what one call may carry out of the queue: at most 256 operations and, as far as the lines are
// known, 256 lines, or one single larger order. Stored lines are counted by the library, which answers AGAIN.
func (l *lane) take(batch []*pending) []*pending {
	lines := 0
	n := 0
	for n < len(l.queue) && n < stock.MaxCallOps {
		count := max(1, len(l.queue[n].op.Lines))
		if n > 0 && lines+count > stock.MaxCallLines {
			break
		}
		lines += count
		n++
	}
	batch = append(batch, l.queue[:n]...)
	rest := copy(l.queue, l.queue[n:])
	clear(l.queue[rest:])
	l.queue = l.queue[:rest]
	return batch
}
