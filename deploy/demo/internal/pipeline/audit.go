package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

const (
	auditTries = 10 // while something can not be checked at the moment
	auditPause = time.Second
	unchecked  = 3 // exit code of the reconciler: something could not be checked
)

// An Audit is what one pass of the reconciler found.
type Audit struct {
	Exit     int      // 0 clean, 1 repaired, 2 needs an operator, 3 not checked
	Compared bool     // every shard was
	SKUs     int      // compared
	Orders   int      // compared
	Findings []string // what was wrong
}

// Audit lets `reconciler --once` compare both stores. The serving reconciler is stopped first: it gives up its turn,
// for which the pass would otherwise wait. A pass that could not check something is made again.
func (p *Pipeline) Audit(ctx context.Context) (Audit, error) {
	if err := errors.Join(p.stopKind(reconciler)...); err != nil {
		return Audit{}, err
	}
	for try := 1; ; try++ {
		said, err := p.reconciler(ctx, "--once", "--json")
		if err != nil {
			return Audit{}, err
		}
		a, err := readAudit([]byte(said.stdout))
		if err != nil {
			return Audit{}, fmt.Errorf("reconciler --once --json (exit code %d): %w\n%s", said.code, err, strings.TrimSpace(said.stderr))
		}
		a.Exit = said.code
		if a.Exit != unchecked && a.Compared || try == auditTries {
			return a, nil
		}
		if !pause(ctx, auditPause) {
			return a, context.Cause(ctx)
		}
	}
}

// readAudit understands what the reconciler writes.
func readAudit(text []byte) (Audit, error) {
	var doc struct {
		Error  string `json:"error"`
		Shards []struct {
			Shard int `json:"shard"`
			Audit struct {
				Compared bool `json:"compared"`
				SKUs     int  `json:"skus"`
				Orders   int  `json:"orders"`
				More     int  `json:"more"`
			} `json:"audit"`
			Acts []struct {
				Class    string `json:"class"`
				Verb     string `json:"verb"`
				Key      string `json:"key"`
				SKU      int64  `json:"sku_number"`
				Name     string `json:"sku"`
				Order    string `json:"order"`
				Redis    string `json:"redis"`
				Postgres string `json:"postgres"`
				Text     string `json:"text"`
			} `json:"acts"`
		} `json:"shards"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		return Audit{}, fmt.Errorf("read its answer: %w", err)
	}
	a := Audit{Compared: len(doc.Shards) > 0}
	if doc.Error != "" {
		a.Findings = append(a.Findings, doc.Error)
	}
	for _, s := range doc.Shards {
		a.Compared = a.Compared && s.Audit.Compared
		a.SKUs += s.Audit.SKUs
		a.Orders += s.Audit.Orders
		for _, act := range s.Acts {
			finding := fmt.Sprintf("shard %d: %s", s.Shard, act.Class)
			if act.SKU != 0 {
				finding += fmt.Sprintf(": SKU %s (number %d)", act.Name, act.SKU)
			}
			if act.Order != "" {
				finding += ": order " + act.Order
			}
			finding += ": " + act.Text
			if act.Redis != "" || act.Postgres != "" {
				finding += fmt.Sprintf(" (Redis: %s; Postgres and log: %s)", act.Redis, act.Postgres)
			}
			a.Findings = append(a.Findings, finding)
		}
		if s.Audit.More > 0 {
			a.Findings = append(a.Findings, fmt.Sprintf("shard %d: %d more differences", s.Shard, s.Audit.More))
		}
	}
	return a, nil
}
