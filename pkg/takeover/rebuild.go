package takeover

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// sentinel is the field that carries the nonce in orders and buyers; open sets it, nobody puts it.
const sentinel = "~"

func isNotLog(err error) bool { return errors.Is(err, ErrNotLog) }

// put is the rest of step 5: what differs is put, what is extra is deleted. A shard that restarted with its
// data intact is asked for each field and costs no writes, which is why it is compared and not simply overwritten.
//
// Records are put as they are read and nothing of them is kept but marks; so what is extra is known, and deleted, only
// after that. A Redis with little room may have too little for both at once (an older copy that came back has a
// retention of records that are new and one of records that are gone). It refuses what would go beyond its limit. Then
// nothing more is put, but what is extra is deleted all the same before the attempt ends, so that the next one has the
// room. Going beyond the limit instead would end in the kernel killing Redis, with a file that does not fit any more.
func (a *attempt) put(ctx context.Context) error {
	if err := a.renameLog(ctx); err != nil {
		return err
	}
	if err := a.putState(ctx); err != nil {
		return err
	}
	if err := a.fill(ctx, TargetOrders, a.source.Records); err != nil {
		return err
	}
	if err := a.fill(ctx, TargetBuyers, a.buyers); err != nil {
		return err
	}
	source := a.source
	a.source = nil
	if err := source.Close(); err != nil {
		return fmt.Errorf("end the snapshot: %w", err)
	}
	return a.full
}

// verify is step 6. Where nothing was put, the comparison of step 5 was already made behind the fence.
func (a *attempt) verify(ctx context.Context) error {
	if !a.touched {
		return nil
	}
	d, err := a.compareState(ctx)
	if err != nil {
		return err
	}
	if !d.none() {
		return disagreement(TargetState, len(d.set), len(d.delete), append(d.set, d.delete...)[0])
	}
	for _, target := range []string{TargetOrders, TargetBuyers} {
		if err := a.readBack(ctx, target); err != nil {
			return err
		}
	}
	return nil
}

func disagreement(target string, differ, extra int, first string) error {
	return fmt.Errorf("%s: %d fields differ, %d are extra, first %q: %w", target, differ, extra, first, ErrDisagrees)
}

// renameLog moves a log out of the way that would refuse the first entry of this epoch, or whose entries are
// not ours. It is kept: it may be the only evidence of what another history accepted.
func (a *attempt) renameLog(ctx context.Context) error {
	last := a.report.Before.Last
	rename := a.strange || a.options.FreshLog
	if !rename && last != "" {
		at, err := stock.ParsePosition(last)
		rename = err != nil || at.Epoch >= a.seal.Epoch
	}
	if !rename || last == "" && !a.strange {
		return nil
	}
	if last == "" && a.report.Before.Token != "" && a.report.Before.Ledger != a.ledger.ID() {
		return nil // a foreign Redis without a log
	}
	a.report.RenamedLog = true
	return a.once(ctx, Put{Target: TargetLog, Verb: VerbRename})
}

// difference is what has to change in the state, which is small: it is held whole.
type difference struct {
	set    []string // fields
	delete []string // fields
	same   int
}

func (d difference) none() bool { return len(d.set) == 0 && len(d.delete) == 0 }

func (a *attempt) putState(ctx context.Context) error {
	d, err := a.compareState(ctx)
	if err != nil {
		return err
	}
	a.report.Same += d.same
	drop := parcel{attempt: a, target: TargetState, verb: VerbDelete}
	for _, field := range d.delete {
		if err := drop.add(ctx, field); err != nil {
			return err
		}
	}
	if err := drop.flush(ctx); err != nil {
		return err
	}
	set := parcel{attempt: a, target: TargetState, verb: VerbSet}
	for _, field := range d.set {
		if err := set.add(ctx, field, a.state[field]); err != nil {
			return err
		}
	}
	return set.flush(ctx)
}

// compareState reads the state and says how it differs.
func (a *attempt) compareState(ctx context.Context) (d difference, err error) {
	have, err := a.redis.State(ctx)
	if err != nil {
		return d, fmt.Errorf("read %s: %w", TargetState, err)
	}
	for field, text := range have {
		expected, known := a.state[field]
		switch {
		case !isNumber(field): // the protocol's own fields
		case !known:
			d.delete = append(d.delete, field)
		case expected == text:
			d.same++
		}
	}
	for field, expected := range a.state {
		if have[field] != expected {
			d.set = append(d.set, field)
		}
	}
	slices.Sort(d.set) // so that two attempts put the same in the same order
	slices.Sort(d.delete)
	return d, nil
}

// fill puts what is missing or differs in one of the hashes that grow with the trade.
func (a *attempt) fill(ctx context.Context, target string, read func(context.Context, func([]Record) error) error) error {
	had, err := a.redis.Count(ctx, target)
	if err != nil {
		return fmt.Errorf("count %s: %w", target, err)
	}
	m := newMarks()
	a.marks[target] = m
	set := parcel{attempt: a, target: target, verb: VerbSet}
	err = read(ctx, func(page []Record) error {
		for _, r := range page {
			m.add(r.ID, r.Text)
		}
		if a.full != nil {
			return nil
		}
		return a.fillPage(ctx, &set, page, had == 0)
	})
	if err == nil {
		err = set.flush(ctx)
	}
	if err != nil {
		return fmt.Errorf("fill %s: %w", target, err)
	}
	return a.prune(ctx, target)
}

// fillPage puts of a page what Redis does not have; one that had nothing when it began is not asked.
func (a *attempt) fillPage(ctx context.Context, set *parcel, page []Record, empty bool) error {
	have := make([]string, len(page)) // nothing
	if !empty {
		names := make([]string, len(page))
		for i, r := range page {
			names[i] = r.ID
		}
		var err error
		if have, err = a.redis.Texts(ctx, set.target, names); err != nil {
			return err
		}
	}
	for i, r := range page {
		if have[i] == r.Text {
			a.report.Same++
			continue
		}
		if err := set.add(ctx, r.ID, r.Text); err != nil {
			return err
		}
	}
	return nil
}

// buyers are the fields of what buyers have of the SKUs that have a limit, and for each of these the mark that it is
// counted in full. Mark and counts come from one snapshot of what the ledger persisted, behind the fence: an order that
// was accepted before the limit is in it, too, whoever counted at the time.
func (a *attempt) buyers(ctx context.Context, page func([]Record) error) error {
	var fields []Record
	for _, sku := range slices.Sorted(maps.Keys(a.limited)) {
		fields = append(fields, Record{ID: MarkField(sku), Text: Counted})
	}
	for part := range slices.Chunk(fields, SnapshotPage) {
		if err := page(part); err != nil {
			return err
		}
	}
	return a.source.Bought(ctx, func(bought []Bought) error {
		fields = fields[:0]
		for _, b := range bought {
			if a.limited[b.SKU] && b.Units > 0 && b.Buyer != "" {
				fields = append(fields, b.field())
			}
		}
		if len(fields) == 0 {
			return nil
		}
		return page(fields)
	})
}

// prune deletes what the ledger does not know, if Redis has more fields than are wanted. Where the numbers do not agree
// afterwards, for whatever reason, reading back says so: it happens then in any case.
func (a *attempt) prune(ctx context.Context, target string) error {
	m := a.marks[target]
	has, err := a.redis.Count(ctx, target)
	if err != nil {
		return fmt.Errorf("count %s: %w", target, err)
	}
	if has == m.n && a.full == nil {
		return nil
	}
	a.touched = true
	if has < m.n && a.full == nil {
		return nil
	}
	if err := m.sort(); err != nil {
		return fmt.Errorf("%s: %w", target, err)
	}
	drop := parcel{attempt: a, target: target, verb: VerbDelete}
	waiting := map[string]bool{} // to be deleted by the next call; a scan may find a field twice
	err = a.scan(ctx, target, func(page map[string]string) error {
		for _, field := range slices.Sorted(maps.Keys(page)) {
			if _, known, _ := m.find(field, ""); known || waiting[field] {
				continue
			}
			waiting[field] = true
			if err := drop.add(ctx, field); err != nil {
				return err
			}
			if drop.fields == 0 {
				clear(waiting)
			}
		}
		return nil
	})
	if err == nil {
		err = drop.flush(ctx)
	}
	if err != nil {
		return fmt.Errorf("delete what is extra in %s: %w", target, err)
	}
	return nil
}

// readBack reads one of the big hashes completely and compares it with the marks of what it has to contain: each seen,
// as it was put, and nothing else.
func (a *attempt) readBack(ctx context.Context, target string) error {
	m := a.marks[target]
	if err := m.sort(); err != nil {
		return fmt.Errorf("%s: %w", target, err)
	}
	missing, differ, extra, first := m.n, 0, 0, ""
	seen := m.unseen()
	err := a.scan(ctx, target, func(page map[string]string) error {
		for field, text := range page {
			at, known, same := m.find(field, text)
			if known && seen.see(at) {
				missing--
			}
			switch {
			case same:
				continue
			case known:
				differ++
			default:
				extra++
			}
			if first == "" || field < first {
				first = field
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read %s back: %w", target, err)
	}
	switch {
	case differ > 0 || extra > 0:
		return disagreement(target, differ+missing, extra, first)
	case missing > 0:
		return fmt.Errorf("%s: %d of %d fields are gone: %w", target, missing, m.n, ErrDisagrees)
	}
	return nil
}

// scan reads one of the big hashes page by page. A field may come twice.
func (a *attempt) scan(ctx context.Context, target string, page func(map[string]string) error) error {
	read := a.redis.Orders
	if target == TargetBuyers {
		read = a.redis.Buyers
	}
	for cursor := uint64(0); ; {
		fields, next, err := read(ctx, cursor, a.options.Page)
		if err != nil {
			return err
		}
		delete(fields, sentinel)
		if err := page(fields); err != nil {
			return err
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

func isNumber(field string) bool {
	for i := range len(field) {
		if field[i] < '0' || field[i] > '9' {
			return false
		}
	}
	return field != ""
}
