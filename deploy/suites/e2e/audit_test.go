package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/sandbox"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// What the reconciler writes with --json.
type (
	verdict struct {
		Exit   int
		Error  string        `json:"error"`
		Shards []shardReport `json:"shards"`
	}
	shardReport struct {
		Shard   int    `json:"shard"`
		Class   string `json:"class"`
		Expired int    `json:"expired"`
		Audit   struct {
			Compared bool `json:"compared"`
			SKUs     int  `json:"skus"`
			Orders   int  `json:"orders"`
			Restarts int  `json:"restarts"`
			More     int  `json:"more"`
		} `json:"audit"`
		Acts []act `json:"acts"`
	}
	act struct {
		Class    string `json:"class"`
		Verb     string `json:"verb"`
		State    string `json:"state"`
		Key      string `json:"key"`
		SKU      string `json:"sku"`
		Order    string `json:"order"`
		Redis    string `json:"redis"`
		Postgres string `json:"postgres"`
		Text     string `json:"text"`
	}
)

func (v verdict) acts() []act {
	var all []act
	for _, s := range v.Shards {
		all = append(all, s.Acts...)
	}
	return all
}

func (v verdict) compared() bool {
	for _, s := range v.Shards {
		if !s.Audit.Compared {
			return false
		}
	}
	return len(v.Shards) > 0
}

func (v verdict) restarts() int {
	sum := 0
	for _, s := range v.Shards {
		sum += s.Audit.Restarts
	}
	return sum
}

// command runs the reconciler to its end and gives its output and exit code.
func (s *shop) command(arguments ...string) (stdout, stderr string, code int) {
	s.t.Helper()
	var out, complaint bytes.Buffer
	process, err := sandbox.StartProcess(s.t.Context(), sandbox.ProcessOptions{
		Path: filepath.Join(programs(s.t), reconciler), Args: arguments, Env: s.environment(reconciler), Stdout: &out, Stderr: &complaint,
	})
	need(s.t, err)
	select {
	case <-process.Done():
	case <-time.After(2 * time.Minute):
		process.Kill()
		s.t.Fatalf("reconciler %v did not end: %s", arguments, complaint.String())
	}
	var exit *exec.ExitError
	if errors.As(process.Err(), &exit) {
		code = exit.ExitCode()
	} else {
		need(s.t, process.Err())
	}
	return out.String(), complaint.String(), code
}

// reconcile runs a command of the reconciler that writes a verdict.
func (s *shop) reconcile(arguments ...string) verdict {
	s.t.Helper()
	out, complaint, code := s.command(append(arguments, "--json")...)
	var v verdict
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		s.t.Fatalf("reconciler %v (exit %d): %v\n%s%s", arguments, code, err, out, complaint)
	}
	v.Exit = code
	return v
}

// finish is how every row ends: Postgres has everything, no producer saw an error that no rule knows, and the audit
// by the reconciler's own command compares all shards and finds nothing.
func (s *shop) finish() {
	s.t.Helper()
	if len(s.living(consumer)) == 0 {
		s.start(consumer)
	}
	s.drain()
	for _, r := range s.living(producer) {
		if n := r.metric("stockpipe_desk_unclassified_total"); n != 0 {
			s.t.Errorf("%s saw %v errors that no rule knows", r.name, n)
		}
	}
	for _, r := range s.living(reconciler) {
		r.stop()
	}
	s.drain()
	s.clean()
}

// clean audits everything and wants nothing found.
func (s *shop) clean() {
	s.t.Helper()
	v := s.reconcile("--once")
	if v.Exit != 0 || !v.compared() || len(v.acts()) != 0 {
		s.t.Errorf("the audit is not clean (exit %d, compared %v): %s %+v", v.Exit, v.compared(), v.Error, v.acts())
	}
	s.drain() // what this pass ended
}

// logIsLedger compares the whole log of every shard with the events of that epoch in Postgres, operation by
// operation, and says how many there are.
func (s *shop) logIsLedger() int {
	s.t.Helper()
	type place struct {
		shard    int
		seq, idx int64
	}
	type operation struct{ id, body string }
	log := map[place]operation{}
	for n := range s.plan.shards {
		at := stock.Position{Epoch: s.epoch(n)}
		for {
			page, err := s.shard(n).Range(s.t.Context(), at, 1000)
			need(s.t, err)
			if len(page) == 0 {
				break
			}
			for _, raw := range page {
				entry, err := raw.Parse()
				need(s.t, err)
				for i := range entry.Ops {
					log[place{n, entry.Seq, int64(i)}] = operation{entry.Ops[i].ID, string(event.AppendBody(nil, &entry.Ops[i]))}
				}
				at = entry.Position
			}
		}
	}
	rows, err := s.pool.Query(s.t.Context(), `select e.shard, e.seq, e.idx, e.id, e.body from event e join shard s on s.number = e.shard and s.epoch = e.epoch`)
	need(s.t, err)
	defer rows.Close()
	found := 0
	for rows.Next() {
		var at place
		var op operation
		need(s.t, rows.Scan(&at.shard, &at.seq, &at.idx, &op.id, &op.body))
		if log[at] != op {
			s.t.Errorf("shard %d, entry %d, operation %d: the log has %v, Postgres %v", at.shard, at.seq, at.idx, log[at], op)
		}
		found++
	}
	need(s.t, rows.Err())
	if found != len(log) {
		s.t.Errorf("the log has %d operations, Postgres %d", len(log), found)
	}
	return found
}
