package shoptest

import (
	"net/http"
	"slices"
	"time"
)

// AutoOpen is how long a takeover by itself may take on a machine that does much else; the full size wants 5 s of
// every fault of Redis.
const AutoOpen = 15 * time.Second

// A Trial is a fault that happens while two producers sell one SKU. Whatever was lost can be sold again afterwards,
// and not one unit more.
type Trial struct {
	Name    string
	Classes []string // of the repair that opened the shop again: one of these; none means that no takeover may happen
	Plan    Plan     // of two producers, two consumers and a reconciler if it names no producers
	Replica bool     // Redis has one, behind a proxy of its own
	Split   bool     // the old server goes on selling to those who still reach it, until the takeover
	Workers bool     // the consumers live through it; else they are killed before, so that Postgres lags
	Loses   bool     // some holds must be lost, or the fault was none
	Whole   bool     // runs in the full size only
	Plain   bool     // no mix of everything else beside it
	Limits  bool     // the mix has a limit per buyer
	Calm    bool     // callers take their time: the fault is a long one, and nothing is to be sold out meanwhile
	Within  time.Duration

	Before func(*Victim) // while orders come, before the last of them
	Hit    func(*Victim)
	After  func(*Victim) // once it sells again
}

// Play makes a shop suffer the trial, judges what everybody was told, and audits.
func (f *Trial) Play(r *Row) {
	t := r.T
	if len(f.Classes) > 0 {
		r.Class = f.Classes[0]
	}
	units := Size(600, 5_000)
	p := f.Plan
	if p.Producers == 0 {
		p.Producers, p.Consumers, p.Reconcilers = 2, 2, 1
	}
	v := Suffering(r, p, f.Replica)
	v.Supply(int64(units), "tea")
	var mix *Mix
	if !f.Plain {
		mix = v.Mix(MixPlan{Limits: f.Limits})
		v.Mixed = mix
	}
	epoch, before := v.Epoch(0), v.takeovers()
	think := Size(60*time.Millisecond, 40*time.Millisecond)
	if f.Calm {
		think *= 5
	}
	v.Load = v.Traffic(16, think, true, "tea")
	v.More(100)
	if f.Replica {
		v.AwaitReplica()
	}
	if !f.Workers {
		v.KillAll(Consumer)
	}
	if f.Before != nil {
		f.Before(v)
	}
	v.More(50)

	hit := time.Now()
	f.Hit(v)
	gone := time.Now() // what is asked from here on meets the fault
	opened := gone
	if len(f.Classes) > 0 {
		opened = v.AwaitSale(epoch)
		r.Opened(opened.Sub(hit))
	}
	if f.Split {
		gone = opened // what its old server sold until then is persisted or reported lost
	}
	if took := opened.Sub(hit); f.Within > 0 && took > f.Within {
		t.Errorf("it sold again after %v, at most %v is promised", took, f.Within)
	}
	for range 2 - len(v.Living(Consumer)) {
		v.Start(Consumer)
	}
	v.More(20)
	if f.After != nil {
		f.After(v)
	}
	v.Load.Stop()
	if mix != nil {
		mix.Stop()
	}
	answers := append(v.Load.Answers(), v.SellOut(units)...)
	v.Drain()

	refused := 0
	if len(f.Classes) > 0 {
		refused = v.JudgeGap(answers, epoch, gone, opened)
	} else if now := v.Epoch(0); now != epoch {
		t.Errorf("there was a takeover, from epoch %d to %d: none was needed", epoch, now)
	}
	persisted, lost := v.Standings(answers)
	v.JudgeEnd(answers, persisted, lost, epoch, units)
	if f.Loses && len(lost) == 0 {
		t.Error("nothing was lost: the fault was none")
	}
	v.JudgeHistory("tea", int64(units), answers, nil, lost)
	v.judgeClass(f.Classes, before)
	if mix != nil {
		r.Note("%v", mix.Judge())
	}
	if len(f.Classes) > 0 {
		r.Note("sold again %.1f s after the fault, without anybody; %d calls refused until then (slowest answer %.1f s)",
			opened.Sub(hit).Seconds(), refused, Slowest(answers, hit, opened).Seconds())
	}
	told := Counts(answers)
	r.Note("%d told 201: %d persisted, %d reported lost, 0 silent; %d of %d units sold in the end", told[http.StatusCreated]+told[http.StatusOK],
		len(persisted), len(lost), One[int64](v.Shop, `select held from stock where sku = $1`, v.Numbers["tea"]), units)
	if f.Workers {
		v.JudgeVoices(time.Since(hit))
	}
	v.Finish()
}

// takeovers is how many there were.
func (v *Victim) takeovers() int64 {
	v.T.Helper()
	return One[int64](v.Shop, `select count(*) from repair where verb = 'takeover'`)
}

// judgeClass: the first takeover after those before the fault was for one of the classes.
func (v *Victim) judgeClass(classes []string, before int64) {
	v.T.Helper()
	if len(classes) == 0 {
		return
	}
	found := One[string](v.Shop, `select coalesce((select class from repair where verb = 'takeover' order by id offset $1 limit 1), '')`, before)
	if !slices.Contains(classes, found) {
		v.T.Errorf("the takeover was for class %q, want one of %q", found, classes)
	}
}
