package reconcilerapp

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/stockpipe/stockpipe/reconciler/internal/repair"
)

// Document is what --json writes.
type Document struct {
	Mode   string          `json:"mode"`   // once, plan, or the command; "plan of <command>" of one that was only planned
	Exit   int             `json:"exit"`   // the exit code
	Result string          `json:"result"` // the exit code in a word: clean, repaired, operator, unchecked
	Error  string          `json:"error,omitempty"`
	Shards []repair.Report `json:"shards"`

	Verifications []repair.Verification `json:"verifications,omitempty"` // of verify
	Story         *repair.Story         `json:"story,omitempty"`         // of explain
	Prunings      []repair.Pruning      `json:"prunings,omitempty"`      // of prune
}

var results = map[int]string{
	repair.ExitClean: "clean", repair.ExitRepaired: "repaired", repair.ExitOperator: "operator", repair.ExitUnchecked: "unchecked",
}

// unchecked is the answer when nothing could be looked at. A server that needs a setting needs an operator, but what
// the shards are like is not known, and that is what the code says.
func unchecked(c Config, out io.Writer, mode string, err error) (int, error) {
	if !c.JSON {
		return repair.ExitUnchecked, err
	}
	doc := Document{Mode: mode, Exit: repair.ExitUnchecked, Error: err.Error(), Shards: []repair.Report{}}
	return doc.Exit, errors.Join(err, doc.write(c, out))
}

func (d *Document) write(c Config, out io.Writer) error {
	d.Result = results[d.Exit]
	if c.JSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		return e.Encode(d)
	}
	for i := range d.Shards {
		r := &d.Shards[i]
		for j := range r.Acts {
			if _, err := fmt.Fprintln(out, r.Acts[j].String()); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintln(out, r.String()); err != nil {
			return err
		}
	}
	if err := d.writeRest(out); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "%s: %s (exit %d)\n", d.Mode, d.Result, d.Exit)
	return err
}

// writeRest writes what verify and explain found, and what prune deleted.
func (d *Document) writeRest(out io.Writer) error {
	var lines []string
	for i := range d.Verifications {
		v := &d.Verifications[i]
		for _, f := range v.Flaws {
			lines = append(lines, fmt.Sprintf("shard %d: flaw: %s", v.Shard, f))
		}
		if v.More > 0 {
			lines = append(lines, fmt.Sprintf("shard %d: %d more flaws", v.Shard, v.More))
		}
		lines = append(lines, v.String())
	}
	for i := range d.Prunings {
		lines = append(lines, d.Prunings[i].String())
	}
	if d.Story != nil {
		lines = append(lines, d.Story.Lines()...)
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(out, line); err != nil {
			return err
		}
	}
	return nil
}
