package pipeline

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

func TestTheFirstLineWithAddressesIsFoundInPieces(t *testing.T) {
	t.Parallel()
	var copy bytes.Buffer
	j := newJournal(&copy)
	log := "warming up\n" +
		`{"level":"warn","msg":"nothing is sold yet","redis":"redis://127.0.0.1:1/0"}` + "\n" +
		`{"level":"info","msg":"producer starts","api":"http://127.0.0.1:2","ops":"http://127.0.0.1:3"}` + "\n" +
		`{"level":"info","msg":"again","ops":"http://127.0.0.1:4"}` + "\n"
	for piece := range strings.SplitSeq(log, "1") {
		_, _ = j.Write([]byte(piece + "1"))
	}
	select {
	case p := <-j.placed:
		if p != (place{API: "http://127.0.0.1:2", Ops: "http://127.0.0.1:3"}) {
			t.Errorf("got %+v", p)
		}
	default:
		t.Error("no address was found")
	}
	if copy.String() != log+"1" {
		t.Errorf("the copy is %q", copy.String())
	}
}

func TestTheTailIsBounded(t *testing.T) {
	t.Parallel()
	j := newJournal(&bytes.Buffer{})
	if j.tail() != "it said nothing" {
		t.Errorf("got %q", j.tail())
	}
	_, _ = j.Write([]byte(strings.Repeat("x", 10*mostLine) + "\n" + strings.Repeat("line\n", 100) + "half"))
	if got, want := j.tail(), "its last words:"+strings.Repeat("\n  line", tailLines)+"\n  half"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestAnAuditIsUnderstood(t *testing.T) {
	t.Parallel()
	got, err := readAudit([]byte(`{"mode":"once","exit":2,"result":"operator","shards":[
		{"shard":0,"class":"healthy","audit":{"compared":true,"skus":3,"orders":5,"more":2},"acts":[
			{"shard":0,"class":"tampered","verb":"freeze","state":"operator","sku_number":1,"sku":"cup","text":"the quantities differ","redis":"2|0|0","postgres":"1|0|0"}]},
		{"shard":1,"class":"healthy","audit":{"compared":true,"skus":1,"orders":1},"acts":[]}]}`))
	want := Audit{Compared: true, SKUs: 4, Orders: 6, Findings: []string{
		"shard 0: tampered: SKU cup (number 1): the quantities differ (Redis: 2|0|0; Postgres and log: 1|0|0)", "shard 0: 2 more differences",
	}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestAnAuditOfNothingComparedNothing(t *testing.T) {
	t.Parallel()
	a, err := readAudit([]byte(`{"mode":"once","exit":3,"error":"Postgres is away","shards":[]}`))
	if err != nil || a.Compared || len(a.Findings) != 1 {
		t.Errorf("got %+v, %v", a, err)
	}
	if _, err := readAudit([]byte("no JSON")); err == nil {
		t.Error("text without JSON was understood")
	}
}

func TestLagIsUnknownBetweenEpochs(t *testing.T) {
	t.Parallel()
	at := func(epoch, seq int64) stock.Position { return stock.Position{Epoch: epoch, Seq: seq} }
	same := Reach{Redis: at(2, 9), Postgres: at(2, 4)}
	other := Reach{Redis: at(2, 9), Postgres: at(3, 0)}
	if got := LagOf([]Reach{same, same}, nil); got != 10 {
		t.Errorf("lag %d, want 10", got)
	}
	if got := LagOf([]Reach{same, other}, nil); got != -1 {
		t.Errorf("lag %d, want -1", got)
	}
}

func TestAConsumerIsCalledAsItWasStarted(t *testing.T) {
	t.Parallel()
	if got := consumerName("consumer-2-4711"); got != "consumer-2" {
		t.Errorf("got %q", got)
	}
}
