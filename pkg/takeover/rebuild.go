package takeover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// sentinel is the field that carries the nonce in orders and buyers; open sets it, nobody puts it.
const sentinel = "~"

// targets are the hashes that are rebuilt.
var targets = []string{TargetState, TargetOrders, TargetBuyers}

// wanted is the text of every field of every target.
func (s *Snapshot) wanted() map[string]map[string]string {
	skus := make(map[string]string, len(s.Stock))
	for number, field := range s.Stock {
		skus[strconv.FormatInt(number, 10)] = field.String()
	}
	return map[string]map[string]string{TargetState: skus, TargetOrders: s.Orders, TargetBuyers: s.buyers()}
}

// buyers is what buyers have of the SKUs that have a limit, and for each of these the mark that it is counted in full.
// Mark and counts come from one snapshot of what the ledger persisted, behind the fence: an order that was accepted
// before the limit is in it, too, whoever counted at the time.
func (s *Snapshot) buyers() map[string]string {
	fields := map[string]string{}
	for number, field := range s.Stock {
		if field.Limit > 0 {
			fields[MarkField(number)] = Counted
		}
	}
	for key, units := range s.Bought {
		if s.Stock[key.SKU].Limit > 0 && units > 0 && key.Buyer != "" {
			fields[BuyerField(key)] = strconv.FormatInt(units, 10)
		}
	}
	return fields
}

func isNotLog(err error) bool { return errors.Is(err, ErrNotLog) }

// difference is what has to change in one hash.
type difference struct {
	set    []string // fields
	delete []string // fields
	same   int
}

func (d difference) none() bool { return len(d.set) == 0 && len(d.delete) == 0 }

// put is the rest of step 5: what differs is put, what is extra is deleted. A shard that restarted with its
// data intact costs two scans and no writes, which is why it is compared and not simply overwritten.
func (a *attempt) put(ctx context.Context) error {
	if err := a.renameLog(ctx); err != nil {
		return err
	}
	for _, target := range targets {
		d, err := a.compare(ctx, target)
		if err != nil {
			return err
		}
		a.report.Put += len(d.set)
		a.report.Deleted += len(d.delete)
		a.report.Same += d.same
		if err := a.send(ctx, target, d); err != nil {
			return err
		}
	}
	return nil
}

// verify is step 6. Where nothing was put, the comparison of step 5 was already made behind the fence.
func (a *attempt) verify(ctx context.Context) error {
	if !a.touched {
		return nil
	}
	for _, target := range targets {
		d, err := a.compare(ctx, target)
		if err != nil {
			return err
		}
		if !d.none() {
			return fmt.Errorf("%s: %d fields differ, %d are extra, first %q: %w",
				target, len(d.set), len(d.delete), append(d.set, d.delete...)[0], ErrDisagrees)
		}
	}
	return nil
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

// compare reads one hash completely and says how it differs.
func (a *attempt) compare(ctx context.Context, target string) (difference, error) {
	var d difference
	want := a.want[target]
	seen := make(map[string]bool, len(want))
	judge := func(have map[string]string) {
		for field, text := range have {
			expected, known := want[field]
			switch {
			case seen[field] || field == sentinel:
				continue
			case target == TargetState && !isNumber(field):
				continue // the protocol's own fields
			case !known:
				d.delete = append(d.delete, field)
			case expected != text:
				d.set = append(d.set, field)
			default:
				d.same++
			}
			seen[field] = true
		}
	}
	if err := a.scan(ctx, target, judge); err != nil {
		return d, fmt.Errorf("read %s: %w", target, err)
	}
	for field := range want {
		if !seen[field] {
			d.set = append(d.set, field)
		}
	}
	slices.Sort(d.set) // so that two attempts put the same in the same order
	slices.Sort(d.delete)
	return d, nil
}

func (a *attempt) scan(ctx context.Context, target string, judge func(map[string]string)) error {
	if target == TargetState {
		fields, err := a.redis.State(ctx)
		judge(fields)
		return err
	}
	read := a.redis.Orders
	if target == TargetBuyers {
		read = a.redis.Buyers
	}
	for cursor := uint64(0); ; {
		page, next, err := read(ctx, cursor, a.options.Page)
		if err != nil {
			return err
		}
		judge(page)
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// send puts a difference in calls that are bounded in fields and bytes.
func (a *attempt) send(ctx context.Context, target string, d difference) error {
	want, size, args := a.want[target], 0, []string(nil)
	flush := func(verb string) error {
		if len(args) == 0 {
			return nil
		}
		err := a.once(ctx, Put{Target: target, Verb: verb, Args: args})
		size, args = 0, nil
		return err
	}
	for _, field := range d.delete {
		args, size = append(args, field), size+len(field)
		if len(args) >= maxPutItems || size >= maxPutSize {
			if err := flush(VerbDelete); err != nil {
				return err
			}
		}
	}
	if err := flush(VerbDelete); err != nil {
		return err
	}
	for _, field := range d.set {
		args, size = append(args, field, want[field]), size+len(field)+len(want[field])
		if len(args) >= 2*maxPutItems || size >= maxPutSize {
			if err := flush(VerbSet); err != nil {
				return err
			}
		}
	}
	return flush(VerbSet)
}

// once makes one put. The seq that it answers is the key to the next one: a late copy finds it moved. [model]
func (a *attempt) once(ctx context.Context, p Put) (err error) {
	a.touched = true
	if a.seq, err = a.redis.Put(ctx, a.seal, a.seq, p); err != nil {
		return fmt.Errorf("put %s: %w", p.Target, err)
	}
	return nil
}

func isNumber(field string) bool {
	for i := range len(field) {
		if field[i] < '0' || field[i] > '9' {
			return false
		}
	}
	return field != ""
}
