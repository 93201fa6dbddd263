package event_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// A number of a body has one writing; every other is somebody else's.
var foreignNumbers = []string{
	"", "-5", "+5", "01", "00", "1e3", "0x10", "nan", "NaN", "inf", "1.0", " 1", "1 ", "1_000", "9007199254740992", "12345678901234567",
	"99999999999999999999", "٣", "1\x00", "\x00", "1'",
}

func TestForeignBodiesAreUnreadable(t *testing.T) {
	t.Parallel()
	bodies := []string{
		"", "R", "r900000|1|1=1", "R900000", "R900000|1", "R900000|1|", "R900000|1|1=1|", "R900000|1|1=1|K", "R900000|1|1=1|k|k", "R900000|1|1=1k", "R900000|1|k",
		"R999|1|1=1", "R86400001|1|1=1", "R|1|1=1", "S900000|1|1=1", "S1|1=1", "S|0|1=1", "S|1000000000|1=1", "S|1|1=0", "S|1|1=1000001", "S|1|0=1", "S|1|1=1:1", "S|1|2=2:1",
		"S|1|2=1,1=1", "S|1|1=1,1=1", "S|1|1=1,", "S|1|,1=1", "S|1|1=1,,2=1", "S|1|1", "S|1|=1", "S|1|1=", "S|1|1==1", "S|1|1=1=1", "S|1|1=+1", "S|1|1=1;", "S|1|1=1:",
		"C", "C0", "C1000000000", "C1|", "L999999999", "X", "E0", "c1", "O", "O1", "O1-", "O-1", "O1-2-3", "O01-1", "O1-1 ",
		"M1|receive|x|1=1", "M1|receive|x|1=-0", "M1|receive|x|1=+", "M1|receive|x|1=++1", "M1|receive|x|1=+1000000000", "M1|receive|x|1=-1000000000", "M1|receive|x|1=+1:1",
		"M1||x|1=+1", "M1|receive||1=+1", "M1|re ceive|x|1=+1", "M1|receive|x:y|1=+1", "M1|receive|" + strings.Repeat("r", 33) + "|1=+1", "M1|receive|x|2=+1,1=+1", "M1|receive|x|1=+1|", "M|receive|x|1=+1", "m1",
		"N1|1=1|", "N1|1=1|a b", "N1|1=1|%41", "N1|1=1|%2f", "N1|1=1|%2", "N1|1=1|%", "N1|1=1|%GG", "N1|1=1|a%00b", "N1|1=1|%FF", "N1|1=1|%C3", "N1|1=1|%ED%A0%80", "N1|1=1|%F5%80%80%80", "N1|1=1|%C0%80",
		"N1|1=1|" + strings.Repeat("s", 65), "N1|1=1|" + strings.Repeat("%20", 65), "N1|0=1|a", "N1|1=1000000000|a", "N1|1=+1|a", "N1|1=-1|a", "N1|1|a", "N1|1=1", "N1|1=1|a|", "N1|1=1,2=1|a",
		"T1", "T1|0|0", "T1|0||0|", "T0|0||0", "T1|0|f|0", "T1|0|x|0", "T1|0|+x|0", "T1|0|+c+f|0", "T1|0|+f+f|0", "T1|0|+f-f|0", "T1|0|+|0", "T1|0|?f|0", "T1|0|+fc|0", "T1|0||1000000000", "T1|||0", "T1|0||",
		"T1|--||0", "T1|-1||0", "T1|0||-1", "T1|-", "T1|0|-|0", "T1|9007199254740992||-",
		"V1=1", "G1", "K1", "Z1", "~1", "🫖1",
	}
	bodies = append(bodies, foreignLifecycles...)
	for _, n := range foreignNumbers {
		bodies = append(bodies, "C1|1="+n, "L1|"+n+"=1", "X1|"+n+"=1", "X"+n+"|1=1", "U"+n+"|9", "U1|"+n, "P"+n+"|1=1", "P1|"+n+"=1", "P1|1="+n, "S|1|1="+n+"|p", "S|1|1=2:"+n+"|p",
			"M1|fulfil|x|1=-"+n+"|o|1|1", "M1|cancel|x|1=+"+n+"|o|1|1", "M1|cancel|x|1=+1|o|"+n+"|1", "M1|cancel|x|1=+1|o|1|"+n)
		if n != "" {
			bodies = append(bodies, "T1|0||-"+n, "T1|-"+n+"||0")
		}
		bodies = append(bodies, "R"+n+"|1|1=1", "R900000|"+n+"|1=1", "R900000|1|"+n+"=1", "R900000|1|1="+n, "C"+n, "L"+n, "X"+n, "E"+n, "O1-"+n, "O"+n+"-1",
			"M"+n+"|adjust|x|1=+1", "M1|adjust|x|"+n+"=+1", "M1|adjust|x|1=+"+n, "N"+n+"|1=1|a", "N1|"+n+"=1|a", "N1|1="+n+"|a", "T"+n+"|0||0", "T1|"+n+"||0", "T1|0||"+n)
	}
	bodies = append(bodies, "S|1|"+manyLines(1501), "P1|"+manyLines(1501), "C1|"+manyLines(1501), "M1|cancel|x|"+strings.ReplaceAll(manyLines(1501), "=", "=+")+"|o|1|1", "M1|adjust|x|"+strings.ReplaceAll(manyLines(1501), "=", "=+"))
	for _, body := range bodies {
		var unreadable *event.UnreadableError
		if op, err := event.ParseBody(body); !errors.As(err, &unreadable) {
			t.Errorf("%.60q is read as %+v, %v", body, op, err)
		}
	}
	for _, body := range []string{"S|1|" + manyLines(1500), "P1|" + manyLines(1500), "C1|" + manyLines(1500), "M1|cancel|x|" + strings.ReplaceAll(manyLines(1500), "=", "=+") + "|o|1|1", "M1|cancel|x|1=+1|" + strings.Repeat("o", 64) + "|999999999|0", "M1|adjust|x|" + strings.ReplaceAll(manyLines(1500), "=", "=+")} {
		if _, err := event.ParseBody(body); err != nil {
			t.Errorf("%.60q: %v", body, err)
		}
	}
}

// foreignLifecycles are bodies of the forms of decision 0006 with one thing wrong each.
var foreignLifecycles = []string{
	"R900000|1|1=1|", "R900000|1|1=1|kp", "R900000|1|1=1|pp", "R900000|1|1=1|p|k", "R900000|1|1=1|P", "R900000|1|1=1p", "R900000|1|1=1|x", "R900000|1||p", "R900000|1|p", "R900000|1|1=1,|p",
	"R900000|1|1=2:1", "R900000|1|1=2:1|k", "R900000|1|1=2:2|p", "R900000|1|1=2:3|p", "R900000|1|1=2:0|p", "R900000|1|1=2:0,2=1:0|p", "R900000|1|1=2:|p", "R900000|1|1=2:1:1|p", "R900000|1|1=2:1:0|p", "R900000|1|1=0:1|p",
	"R900000|1|1=1000001:1|p", "S|1|1=2:1", "S|1|1=2:0|p", "S|1|1=2:1:1|p", "S|1|1=0|p",
	"C1|", "C1|1", "C1|1=", "C1|=1", "C1|1=1,", "C1|,1=1", "C1|1=1:1", "C1|1=2:1", "C1|1=-1", "C1|1=+1", "C1|1=1000001", "C1|0=1", "C1|2=1,1=1", "C1|1=1,1=1", "C1|1=1|1=1", "C0|1=1", "C1000000000|1=1", "C|1=1",
	"C1|9007199254740992=1", "L999999999|1=1", "L1|", "L1|1=1000001", "X1|", "X1|1=1000001", "X1|1=1,1=0", "X1000000000|1=1", "E1|1=1", "E1|",
	"U", "U1", "U1|", "U0|9", "U1000000000|9", "U1|9|", "U1|9|9", "U|9", "u1|9", "U1|9007199254740992",
	"P", "P1", "P1|", "P0|1=1", "P1000000000|1=1", "P1|1=0", "P1|1=1000001", "P1|1=2:1", "P1|1=1:1", "P1|0=1", "P1|2=1,1=1", "P1|1=1,1=1", "P1|1=1,", "P1|1=1|", "P1|1=1|p", "P1|1=+1", "p1|1=1",
	"M1|stocktake|x|1=+1", "M1|opening|x|1=+1", "M1|Cancel|x|1=+1|o|1|1", "M1|receive|x|1=+1|o|1|1", "M1|adjust|x|1=+1|o|1|1", "M1|count|x|1=+1|o|1|1", "M1|fulfil|x|1=-1", "M1|cancel|x|1=+1", "M1|cancel|x|1=+1|",
	"M1|cancel|x|1=+1|o", "M1|cancel|x|1=+1|o|1", "M1|cancel|x|1=+1|o|1|1|", "M1|cancel|x|1=+1||1|1", "M1|cancel|x|1=+1|o|0|1", "M1|cancel|x|1=+1|o|1000000000|1", "M1|cancel|x|1=+1|o|1|1000000000",
	"M1|cancel|x|1=+1|o,u|1|1", "M1|cancel|x|1=+1|~o|1|1", "M1|cancel|x|1=+1|" + strings.Repeat("o", 65) + "|1|1", "M1|cancel|x|1=+0|o|1|1", "M1|cancel|x|1=-1|o|1|1", "M1|cancel|x|1=+2,2=-1|o|1|1", "M1|fulfil|x|1=+1|o|1|1",
	"M1|fulfil|x|1=+0|o|1|1", "M1|fulfil|x|1=-0|o|1|1", "M1|fulfil|x|1=-1,2=+1|o|1|1", "M1|fulfil|x|1=-1000000000|o|1|1", "M1|return|x|1=-1", "M1|return|x|1=-1|o|1|1", "M1|return|x|1=-0", "m1|cancel|x|1=+1",
}

func manyLines(n int) string {
	lines := make([]string, n)
	for i := range lines {
		lines[i] = fmt.Sprintf("%d=1", i+1)
	}
	return strings.Join(lines, ",")
}

func TestForeignCallsAreUnreadable(t *testing.T) {
	t.Parallel()
	const r = "R900000|1|1=1"
	for _, text := range []string{
		"", " ", ";", r, r + " ", r + "  a", r + " a ", " " + r + " a", r + " a  b", r + " a;", ";" + r + " a", r + " a;;C1 b", r + " a;" + r + " b", "C1 a;C1 b", r + " a; C1 b",
		r + " ~~~x", r + " ~", r + " ~~", r + " a~b", r + " a~", r + " a,b,c", "U1|9 a,b", "P1|1=1 a,b", "X1|1=1 a,b", "M1|fulfil|x|1=-1|o|1|1 ~a,b", "M1|return|x|1=+1|o|1|1 ~a,b", "M1|cancel|x|1=+1|o|1|1 ~a,", "M1|cancel|x|1=+1|o|1|1 ~a,b,c", r + " a,,b", r + " a,", r + " ,b", r + " ,", "C1 a,b", "M1|adjust|x|1=+1 ~a,b", r + " a\x00b", r + "\x00 a",
		r + " a,u\x00", r + " a/b", r + " a@b", r + " é", r + " a\tb", r + "\ta", r + " a\n", r + " " + strings.Repeat("i", 65), r + " ~" + strings.Repeat("i", 65),
		r + " a," + strings.Repeat("u", 65), r + strings.Repeat(" a", 257), r + strings.Repeat(" a", 1<<19),
	} {
		var unreadable *event.UnreadableError
		if ops, err := event.ParseOperations(text); !errors.As(err, &unreadable) {
			t.Errorf("%.60q is read as %d operations, %v", text, len(ops), err)
		}
	}
	full, err := event.ParseOperations(r + strings.Repeat(" a", 256))
	if len(full) != stock.MaxCallOps || err != nil {
		t.Errorf("a full call: %d operations, %v", len(full), err)
	}
}

// A reader halts on what it does not know; that depends on the kind of the error.
func TestForeignEntriesAreUnreadable(t *testing.T) {
	t.Parallel()
	good := event.Raw{ID: "5-2", Version: "1", At: "1790000000000", Ops: "C1 a", After: "1=2|0|1"}
	if _, err := good.Parse(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*event.Raw){
		"newer version":         func(r *event.Raw) { r.Version = "2" },
		"no version":            func(r *event.Raw) { r.Version = "" },
		"unknown kind":          func(r *event.Raw) { r.Ops = "Z1 a" },
		"reserved kind":         func(r *event.Raw) { r.Ops = "V1|1=1|2 ~~v:1" },
		"no operations":         func(r *event.Raw) { r.Ops = "" },
		"foreign id":            func(r *event.Raw) { r.ID = "1790000000000-0x" },
		"id with zeros":         func(r *event.Raw) { r.ID = "05-2" },
		"no time":               func(r *event.Raw) { r.At = "" },
		"time with a sign":      func(r *event.Raw) { r.At = "-1" },
		"negative after-image":  func(r *event.Raw) { r.After = "1=-2|0|1" },
		"short after-image":     func(r *event.Raw) { r.After = "1=2|0" },
		"after-image, settings": func(r *event.Raw) { r.After = "1=2|0|1|0|f|0" },
		"after-image, space":    func(r *event.Raw) { r.After = "1=2|0|1 " },
		"after-image of SKU 0":  func(r *event.Raw) { r.After = "0=2|0|1" },
		"after-image too large": func(r *event.Raw) { r.After = "1=9007199254740991|1|0" },
	} {
		raw := good
		change(&raw)
		var unreadable *event.UnreadableError
		if e, err := raw.Parse(); !errors.As(err, &unreadable) {
			t.Errorf("%s: read as %+v, %v", name, e, err)
		}
	}
	for name, fields := range map[string]map[string]any{
		"a field is missing": {"v": "1", "t": "1", "o": "C1 a"},
		"a foreign field":    {"v": "1", "t": "1", "o": "C1 a", "a": "", "x": "1"},
		"no text":            {"v": "1", "t": 1, "o": "C1 a", "a": ""},
		"no field":           {},
	} {
		var unreadable *event.UnreadableError
		raw := event.RawOf("5-2", fields)
		if _, err := raw.Parse(); !errors.As(err, &unreadable) || raw.ID != "5-2" || raw.Ops == "" {
			t.Errorf("%s: %+v, %v", name, raw, err)
		}
	}
	if message := (&event.UnreadableError{What: "x", Text: "\x1b\x00🫖"}).Error(); strings.ContainsAny(message, "\x1b\x00") {
		t.Errorf("unprintable: %q", message)
	}
}

func TestForeignRecordsAndFieldsAreUnreadable(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "h", "h|1-2-0|1|5||", "h|1-2-0|1|5|1=1", "z|1-2-0|1|5||1=1", "H|1-2-0|1|5||1=1", "hh|1-2-0|1|5||1=1", "h|1-2|1|5||1=1", "h|1-2-256|1|5||1=1", "h|1-2-0-0|1|5||1=1", "h|01-2-0|1|5||1=1",
		"h|1-2-0|0|5||1=1", "h|1-2-0|1000000000|5||1=1", "h|1-2-0|1|-5||1=1", "h|1-2-0|1|5|a b|1=1", "h|1-2-0|1|5|a|b|1=1", "h|1-2-0|1|5||1=1:1", "h|1-2-0|1|5||1=+1", "h|1-2-0|1|5||1=1:1000001", "h|1-2-0|1|5||2=1,1=1",
		"h|1-2-0|1|5||1=0", "h|1-2-0|1|5||1=0:0", "h|1-2-0|1|5||1=0:0:0", "h|1-2-0|1|5||1=1:1:0", "h|1-2-0|1|5||1=2:1:0", "h|1-2-0|1|5||1=2:1:1:1", "h|1-2-0|1|5||1=2:1:", "h|1-2-0|1|5||1=2::1", "h|1-2-0|1|5||1=2:1:1000001", "h|1-2-0|1|5||1=1000001:1",
		"h|1-2-0|1|5||1=2:01", "h|1-2-0|1|5||1=2:1:01", "h|1-2-0|1|5||1=02:1", "h|1-2-0|1|5||1=:1", "d|1-2-0|0|0||1=+1:1",
		"d|1-2-0|1|0||1=+1", "d|1-2-0|0|5||1=+1", "d|1-2-0|0|0|u|1=+1", "d|1-2-0|0|0||1=1", "n|1-2-0|0|0||",
	} {
		var unreadable *event.UnreadableError
		if r, err := event.ParseRecord(0, "o", text); !errors.As(err, &unreadable) {
			t.Errorf("record %q is read as %+v, %v", text, r, err)
		}
	}
	for _, text := range []string{
		"", "1", "1|2", "1|2|", "|1|2", "1|2|3|", "1|2|3|0||0", "1|2|3|0||", "1|2|3|0|x|0", "1|2|3|0|cf|0", "1|2|3|0|f", "1|2|3|0|f|0|", "-1|2|3", "01|2|3", "1e3|0|0", "1.0|0|0", " 1|0|0",
		"9007199254740991|1|0", "9007199254740991|9007199254740991|9007199254740991", "1|2|3\x00",
	} {
		var unreadable *event.UnreadableError
		if f, err := event.ParseField(text); !errors.As(err, &unreadable) {
			t.Errorf("field %q is read as %+v, %v", text, f, err)
		}
	}
}
