package ledger

import (
	"container/heap"
	"errors"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// maxWaiters bounds those who wait for one shard.
const maxWaiters = 65_536

// ErrCrowded means that too many wait for the ledger already. The operation stands as accepted: ask with its
// receipt later.
var ErrCrowded = errors.New("65536 callers wait for this shard already: ask with the receipt later")

// A waiter waits for one seq of one epoch. It is told once.
type waiter struct {
	epoch, seq int64
	place      int                 // in its line; -1 once it was told or left
	told       chan stock.Standing // room for one, so that telling never waits
}

// A line holds the waiters of one epoch, the lowest seq first: an advance of the ledger touches those whom it
// concerns and one more, however many wait.
type line []*waiter

func (l line) Len() int           { return len(l) }
func (l line) Less(i, j int) bool { return l[i].seq < l[j].seq }
func (l line) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].place, l[j].place = i, j
}

func (l *line) Push(w any) {
	added := w.(*waiter)
	added.place = len(*l)
	*l = append(*l, added)
}

func (l *line) Pop() any {
	last := len(*l) - 1
	w := (*l)[last]
	(*l)[last] = nil
	*l = (*l)[:last]
	w.place = -1
	return w
}

// A waitroom holds a line for each epoch that somebody waits for, normally one. Sequence numbers of two epochs
// never meet in a line. Not safe for concurrent use.
type waitroom struct {
	lines map[int64]*line
	count int
}

func (r *waitroom) enter(epoch, seq int64) (*waiter, error) {
	if r.count >= maxWaiters {
		return nil, ErrCrowded
	}
	if r.lines == nil {
		r.lines = map[int64]*line{}
	}
	if r.lines[epoch] == nil {
		r.lines[epoch] = &line{}
	}
	w := &waiter{epoch: epoch, seq: seq, told: make(chan stock.Standing, 1)}
	heap.Push(r.lines[epoch], w)
	r.count++
	return w, nil
}

// leave takes a waiter out, if nobody told it yet.
func (r *waitroom) leave(w *waiter) {
	if w.place >= 0 {
		heap.Remove(r.lines[w.epoch], w.place)
		r.shrink(w.epoch)
	}
}

func (r *waitroom) shrink(epoch int64) {
	r.count--
	if r.lines[epoch].Len() == 0 {
		delete(r.lines, epoch)
	}
}

// reached tells those of an epoch up to seq that they are persisted.
func (r *waitroom) reached(epoch, seq int64) {
	for l := r.lines[epoch]; l != nil && l.Len() > 0 && (*l)[0].seq <= seq; {
		r.next(epoch).told <- stock.StandingPersisted
	}
}

func (r *waitroom) next(epoch int64) *waiter {
	w := heap.Pop(r.lines[epoch]).(*waiter)
	r.shrink(epoch)
	return w
}

// closed tells everybody of an epoch that is over how it ended for them. A view in which the epoch is not
// over tells nobody more than reached would.
func (r *waitroom) closed(v epochView) {
	for l := r.lines[v.epoch]; l != nil && l.Len() > 0; {
		standing := v.standing((*l)[0].seq)
		if !final(standing) {
			return
		}
		r.next(v.epoch).told <- standing
	}
}
