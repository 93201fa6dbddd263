package shoptest

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

type (
	// A Verdict is what the reconciler writes with --json.
	Verdict struct {
		Exit   int
		Error  string        `json:"error"`
		Shards []ShardReport `json:"shards"`
	}
	// A ShardReport is its part about one shard.
	ShardReport struct {
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
		Acts []Act `json:"acts"`
	}
	// An Act is one thing that was found, and what was done about it.
	Act struct {
		Class    string `json:"class"`
		Verb     string `json:"verb"`
		State    string `json:"state"`
		Key      string `json:"key"`
		SKU      string `json:"sku"`
		Order    string `json:"order"`
		Redis    string `json:"redis"`
		Postgres string `json:"postgres"`
		Text     string `json:"text"`
		GivesUp  string `json:"gives_up"`
	}
)

// Acts are those of all shards.
func (v Verdict) Acts() []Act {
	var all []Act
	for _, s := range v.Shards {
		all = append(all, s.Acts...)
	}
	return all
}

// Compared says whether every shard was fit to be compared, and was.
func (v Verdict) Compared() bool {
	for _, s := range v.Shards {
		if !s.Audit.Compared {
			return false
		}
	}
	return len(v.Shards) > 0
}

// Restarts is how often the ground moved under the audits.
func (v Verdict) Restarts() int {
	sum := 0
	for _, s := range v.Shards {
		sum += s.Audit.Restarts
	}
	return sum
}

// Command runs the reconciler to its end and gives its output and exit code.
func (s *Shop) Command(arguments ...string) (stdout, stderr string, code int) {
	s.T.Helper()
	var out, complaint bytes.Buffer
	process, err := sandbox.StartProcess(s.T.Context(), sandbox.ProcessOptions{
		Path: filepath.Join(s.programs(Reconciler), Reconciler), Args: arguments, Env: s.Environment(Reconciler), Stdout: &out, Stderr: &complaint,
	})
	Need(s.T, err)
	select {
	case <-process.Done():
	case <-time.After(max(s.Plan.Patience, 2*time.Minute)):
		process.Kill()
		s.T.Fatalf("reconciler %v did not end: %s", arguments, complaint.String())
	}
	var exit *exec.ExitError
	if errors.As(process.Err(), &exit) {
		code = exit.ExitCode()
	} else {
		Need(s.T, process.Err())
	}
	return out.String(), complaint.String(), code
}

// Reconcile runs a command of the reconciler that writes a verdict.
func (s *Shop) Reconcile(arguments ...string) Verdict {
	s.T.Helper()
	out, complaint, code := s.Command(append(arguments, "--json")...)
	var v Verdict
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		s.T.Fatalf("reconciler %v (exit %d): %v\n%s%s", arguments, code, err, out, complaint)
	}
	v.Exit = code
	return v
}

// Finish is how every row ends: Postgres has everything, no producer saw an error that no rule knows, and the audit
// by the reconciler's own command compares all shards and finds nothing.
func (s *Shop) Finish() {
	s.T.Helper()
	if len(s.Living(Consumer)) == 0 {
		s.Start(Consumer)
	}
	s.Drain()
	for _, r := range s.Living(Producer) {
		if n := r.Metric("stockpipe_desk_unclassified_total"); n != 0 {
			s.T.Errorf("%s saw %v errors that no rule knows", r.Name, n)
		}
	}
	for _, r := range s.Living(Reconciler) {
		r.Stop()
	}
	s.Drain()
	s.Clean()
}

// Clean audits everything and wants nothing found.
func (s *Shop) Clean() {
	s.T.Helper()
	v := s.Reconcile("--once")
	if v.Exit != 0 || !v.Compared() || len(v.Acts()) != 0 {
		s.T.Errorf("the audit is not clean (exit %d, compared %v): %s %+v", v.Exit, v.Compared(), v.Error, v.Acts())
	}
	s.Drain() // what this pass ended
}

// LogIsLedger compares the log of every shard with the events of that epoch in Postgres, operation by operation, and
// says how many there are in Postgres. What was trimmed from the log is not compared: the audit proves that no event
// before is missing or twice.
func (s *Shop) LogIsLedger() int {
	s.T.Helper()
	type place struct {
		Shard    int
		Seq, Idx int64
	}
	type operation struct{ ID, Body string }
	log, begins := map[place]operation{}, map[int]int64{} // shard → the first entry that is left
	for n := range s.Plan.Shards {
		at := stock.Position{Epoch: s.Epoch(n)}
		for {
			page, err := s.Shard(n).Range(s.T.Context(), at, 1000)
			Need(s.T, err)
			if len(page) == 0 {
				break
			}
			for _, raw := range page {
				entry, err := raw.Parse()
				Need(s.T, err)
				if begins[n] == 0 {
					begins[n] = entry.Seq
				}
				for i := range entry.Ops {
					log[place{n, entry.Seq, int64(i)}] = operation{entry.Ops[i].ID, string(event.AppendBody(nil, &entry.Ops[i]))}
				}
				at = entry.Position
			}
		}
	}
	rows, err := s.Pool.Query(s.T.Context(), `select e.shard, e.seq, e.idx, e.id, e.body from event e join shard s on s.number = e.shard and s.epoch = e.epoch`)
	Need(s.T, err)
	defer rows.Close()
	found, trimmed := 0, 0
	for rows.Next() {
		var at place
		var op operation
		Need(s.T, rows.Scan(&at.Shard, &at.Seq, &at.Idx, &op.ID, &op.Body))
		if at.Seq < begins[at.Shard] {
			trimmed++
			continue
		}
		if log[at] != op {
			s.T.Errorf("shard %d, entry %d, operation %d: the log has %v, Postgres %v", at.Shard, at.Seq, at.Idx, log[at], op)
		}
		found++
	}
	Need(s.T, rows.Err())
	if found != len(log) {
		s.T.Errorf("the log has %d operations, Postgres %d", len(log), found)
	}
	return found + trimmed
}
