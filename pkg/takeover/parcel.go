package takeover

import (
	"context"
	"errors"
	"fmt"
)

// A parcel gathers changes of one hash and puts them in calls that are bounded in fields and bytes.
type parcel struct {
	attempt *attempt
	target  string
	verb    string // VerbSet or VerbDelete

	args   []string
	fields int
	size   int // bytes of args
}

// add takes one field: its name, and its text where it is set.
func (p *parcel) add(ctx context.Context, field ...string) error {
	for _, text := range field {
		p.size += len(text)
	}
	p.args, p.fields = append(p.args, field...), p.fields+1
	if p.fields < maxPutItems && p.size < maxPutSize {
		return nil
	}
	return p.flush(ctx)
}

// flush puts what was gathered. A Redis without memory for it is no error yet: see attempt.full.
func (p *parcel) flush(ctx context.Context) error {
	a, args, fields := p.attempt, p.args, p.fields
	p.args, p.fields, p.size = nil, 0, 0
	if fields == 0 || p.verb == VerbSet && a.full != nil {
		return nil
	}
	err := a.once(ctx, Put{Target: p.target, Verb: p.verb, Args: args})
	var refused *RefusedError
	switch {
	case p.verb == VerbSet && errors.As(err, &refused) && refused.Class == ClassMemory:
		a.full = err // nothing was written, so the next call names the same seq
	case err != nil:
		return err
	case p.verb == VerbSet:
		a.report.Put += fields
	default:
		a.report.Deleted += fields
	}
	return nil
}

// once makes one put. The seq that it answers is the key to the next one: a late copy finds it moved. [model]
func (a *attempt) once(ctx context.Context, p Put) (err error) {
	a.touched = true
	if a.seq, err = a.redis.Put(ctx, a.seal, a.seq, p); err != nil {
		return fmt.Errorf("put %s: %w", p.Target, err)
	}
	return nil
}
