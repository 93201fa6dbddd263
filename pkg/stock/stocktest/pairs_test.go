package stocktest

import "context"

// pairs is a Counter that notes which operation met which state.
type pairs struct {
	*Counter
	met map[[2]string]bool
}

func (p *pairs) Do(ctx context.Context, s Step) (Answer, error) {
	p.mu.Lock()
	r, ok := p.desk.Orders[s.ID]
	switch {
	case !ok:
		p.met[[2]string{"none", string(s.Verb)}] = true
	case s.Attempt == r.Attempt:
		p.met[[2]string{string(r.State), string(s.Verb)}] = true
		if s.Verb == Reserve && (s.Buyer != r.Buyer || s.Lines[0].Units != r.Lines[0].Asked) {
			p.met[[2]string{string(r.State), "other content"}] = true
		}
	case s.Attempt == r.Attempt+1:
		p.met[[2]string{string(r.State), string(s.Verb) + " of the next attempt"}] = true
	}
	p.mu.Unlock()
	return p.Counter.Do(ctx, s)
}
