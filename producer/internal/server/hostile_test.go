package server

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/pkg/api"
)

// order writes a body with one of its parts replaced.
func body(part, value string) string {
	parts := []struct{ name, value string }{
		{"order_id", `"o1"`}, {"buyer", `"u1"`}, {"lines", `[{"sku":"tea","quantity":1}]`},
	}
	var out []string
	seen := false
	for _, p := range parts {
		if p.name == part {
			p.value, seen = value, true
		}
		if p.value != "" {
			out = append(out, fmt.Sprintf("%q:%s", p.name, p.value))
		}
	}
	if !seen && part != "" {
		out = append(out, fmt.Sprintf("%q:%s", part, value))
	}
	return "{" + strings.Join(out, ",") + "}"
}

func line(sku, quantity string) string {
	return body("lines", `[{"sku":"tea","quantity":1},{"sku":`+sku+`,"quantity":`+quantity+`}]`)
}

type hostile struct {
	name   string
	body   string
	status int
	code   string
	field  string
}

func quantities() []hostile {
	var rows []hostile
	for _, q := range []string{
		"0", "-1", "-5", "1.5", "1.0", "1e3", "1E0", "-0", "2147483648", "1000001", "9223372036854775807",
		"9223372036854775808", "99999999999999999999999999", "0x10", "05", `"5"`, `" 5"`, `"0x10"`, "null", "true", "[]", "{}", `[1]`,
	} {
		rows = append(rows, hostile{"quantity " + q, line(`"tea"`, q), 422, api.CodeInvalid, "lines[1].quantity"})
	}
	for _, q := range []string{"NaN", "Infinity", "+5", "5.", ".5", "1_000"} {
		rows = append(rows, hostile{"quantity " + q, line(`"tea"`, q), 400, api.CodeMalformed, ""})
	}
	return rows
}

func texts() []hostile {
	var rows []hostile
	long := `"` + strings.Repeat("a", 65) + `"`
	for _, id := range []string{
		`""`, long, `"}"`, `"a}b"`, `"x|5=1"`, `"a b"`, `"a/b"`, `"a\"b"`, `"a'b"`, `"a\u0000b"`, `"☕"`, `"\u202eabc"`, `"a,b"`,
		`"a;b"`, `"~a"`, `"a\nb"`, `"é"`, `"*"`, `"a%2Fb"`, `"` + strings.Repeat("a", 60_000) + `"`,
		"12", "123456789012345678901234567890", "1.5", "null", "true", "[]", "{}",
	} {
		rows = append(rows, hostile{"order id " + cut(id), body("order_id", id), 422, api.CodeInvalid, "order_id"})
		if id != `""` && id != `"é"` {
			rows = append(rows, hostile{"buyer " + cut(id), body("buyer", id), 422, api.CodeInvalid, "buyer"})
		}
	}
	rows = append(rows, hostile{"buyer é", body("buyer", `"é"`), 422, api.CodeInvalid, "buyer"})
	for _, sku := range []string{`""`, long, `"\u0000"`, `"a\u0000b"`, `"` + strings.Repeat("☕", 22) + `"`, "7", "null", "true", "[]", "{}"} {
		rows = append(rows, hostile{"SKU " + cut(sku), line(sku, "1"), 422, api.CodeInvalid, "lines[1].sku"})
	}
	for _, sku := range []string{`"}"`, `"a}b"`, `"x|5=1"`, `"no such"`, `"a/b"`, `"\""`, `"'; drop table sku; --"`, `"☕"`, `"\u202eaet"`, `"TEA"`, `"tea "`} {
		rows = append(rows, hostile{"unknown SKU " + sku, line(sku, "1"), 404, api.CodeUnknownSKU, "lines[1].sku"})
	}
	return rows
}

func shapes() []hostile {
	ok := body("", "")
	return []hostile{
		{"no order id", body("order_id", ""), 422, api.CodeInvalid, "order_id"},
		{"no lines", body("lines", ""), 422, api.CodeInvalid, "lines"},
		{"empty lines", body("lines", "[]"), 422, api.CodeInvalid, "lines"},
		{"lines null", body("lines", "null"), 422, api.CodeInvalid, "lines"},
		{"lines an object", body("lines", "{}"), 422, api.CodeInvalid, "lines"},
		{"a line that is a text", body("lines", `["tea"]`), 422, api.CodeInvalid, "lines[0]"},
		{"a line without a quantity", body("lines", `[{"sku":"tea"}]`), 422, api.CodeInvalid, "lines[0].quantity"},
		{"a line without a SKU", body("lines", `[{"quantity":1}]`), 422, api.CodeInvalid, "lines[0].sku"},
		{"an unknown field of a line", body("lines", `[{"sku":"tea","quantity":1,"price":2}]`), 422, api.CodeInvalid, "lines[0].price"},
		{"an unknown field with a bracket", body("lines", `[{"sku":"tea","qu[an":1}]`), 422, api.CodeInvalid, "lines[0].qu[an"},
		{"501 lines", body("lines", "["+many(501, `{"sku":"tea","quantity":1}`)+"]"), 422, api.CodeInvalid, "lines"},
		{"a sum beyond the bound", body("lines", `[{"sku":"tea","quantity":1000000},{"sku":"tea","quantity":1}]`), 422, api.CodeInvalid, "lines"},
		{"an unknown field", body("orderid", `"o1"`), 422, api.CodeInvalid, "orderid"},
		{"an unknown field of other case", body("Buyer", `"o1"`), 422, api.CodeInvalid, "Buyer"},
		{"an unknown field of 1,000 bytes", body(strings.Repeat("x", 1000), `1`), 422, api.CodeInvalid, strings.Repeat("x", 80) + "…"},
		{"a duplicate name", `{"order_id":"o1",` + ok[1:], 422, api.CodeInvalid, "order_id"},
		{"a duplicate name, escaped", `{"\u006frder_id":"o1",` + ok[1:], 422, api.CodeInvalid, "order_id"},
		{"a duplicate name in a line", body("lines", `[{"sku":"tea","quantity":1,"quantity":2}]`), 422, api.CodeInvalid, "lines[0].quantity"},
		{"trailing text", ok + "x", 422, api.CodeInvalid, "body"},
		{"a second document", ok + ok, 422, api.CodeInvalid, "body"},
		{"trailing comma behind", ok + ",", 422, api.CodeInvalid, "body"},
		{"a NUL behind", ok + "\x00", 422, api.CodeInvalid, "body"},
		{"not UTF-8", body("buyer", "\"\xff\xfe\""), 422, api.CodeInvalid, "buyer"},
		{"attempt 0", body("attempt", "0"), 422, api.CodeInvalid, "attempt"},
		{"attempt below 0", body("attempt", "-1"), 422, api.CodeInvalid, "attempt"},
		{"attempt as text", body("attempt", `"1"`), 422, api.CodeInvalid, "attempt"},
		{"attempt too high", body("attempt", "1000000000"), 422, api.CodeInvalid, "attempt"},
		{"ttl 0", body("ttl", "0"), 422, api.CodeInvalid, "ttl"},
		{"ttl below 0", body("ttl", "-60"), 422, api.CodeInvalid, "ttl"},
		{"ttl of 10 years", body("ttl", "315360000"), 422, api.CodeInvalid, "ttl"},
		{"ttl as text", body("ttl", `"15m"`), 422, api.CodeInvalid, "ttl"},
		{"ttl with a fraction", body("ttl", "1.5"), 422, api.CodeInvalid, "ttl"},
		{"ttl of a sale", `{"order_id":"o1","sale":true,"ttl":60,"lines":[{"sku":"tea","quantity":1}]}`, 422, api.CodeInvalid, "ttl"},
		{"sale as text", body("sale", `"true"`), 422, api.CodeInvalid, "sale"},
		{"an unknown level", body("ack", `"disk"`), 422, api.CodeInvalid, "ack"},
		{"an unknown policy", body("policy", `"some"`), 422, api.CodeInvalid, "policy"},
		{"a list", "[" + ok + "]", 422, api.CodeInvalid, "body"},
		{"null", "null", 422, api.CodeInvalid, "body"},
		{"a text", `"o1"`, 422, api.CodeInvalid, "body"},
		{"empty", "", 400, api.CodeMalformed, ""},
		{"spaces", "  \n", 400, api.CodeMalformed, ""},
		{"cut off", ok[:len(ok)-3], 400, api.CodeMalformed, ""},
		{"a comment", "/* */" + ok, 400, api.CodeMalformed, ""},
		{"a byte order mark", "\ufeff" + ok, 400, api.CodeMalformed, ""},
		{"single quotes", strings.ReplaceAll(ok, `"`, `'`), 400, api.CodeMalformed, ""},
		{"a bare NUL", "\x00", 400, api.CodeMalformed, ""},
		{"half a surrogate", body("buyer", `"\ud800"`), 400, api.CodeMalformed, ""},
		{"a trailing comma", ok[:len(ok)-1] + ",}", 400, api.CodeMalformed, ""},
		{"deep nesting", strings.Repeat("[", 60_000), 422, api.CodeInvalid, "body"},
		{"deep nesting within", body("lines", strings.Repeat("[", 60_000)), 422, api.CodeInvalid, "lines[0]"},
		{"1 MB order id", body("order_id", `"`+strings.Repeat("a", 1<<20)+`"`), 413, api.CodeTooLarge, ""},
		{"1 MB SKU", line(`"`+strings.Repeat("a", 1<<20)+`"`, "1"), 413, api.CodeTooLarge, ""},
	}
}

// many writes a list of n elements.
func many(n int, element string) string {
	return strings.TrimSuffix(strings.Repeat(element+",", n), ",")
}

func cut(s string) string { return s[:min(len(s), 30)] }

func TestHostileReservationsAreRefusedByFieldAndWriteNothing(t *testing.T) {
	t.Parallel()
	for _, row := range append(append(quantities(), texts()...), shapes()...) {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, 1)
			r := s.send("POST", "/v1/reservations", row.body)
			p := r.problem(t)
			var fields []string
			for _, e := range p.Errors {
				fields = append(fields, e.Field)
				if e.Remedy == "" || len(e.Value) > 600 {
					t.Errorf("the value or the remedy of %s is not fit to be read: %+v", e.Field, e)
				}
			}
			got := fmt.Sprintf("%d %s %s", r.status, p.Code, strings.Join(fields, " "))
			want := fmt.Sprintf("%d %s %s", row.status, row.code, row.field)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s\n%s", diff, r.body)
			}
			if len(s.world.Operations) != 0 {
				t.Errorf("the desk got %v", s.world.Operations)
			}
			// The same order as an item of a bulk request is refused alike, and its neighbour is not.
			if r.status == 413 || !jsontext.Value(row.body).IsValid() || row.field == "body" {
				return
			}
			b := s.send("POST", "/v1/reservations:batch", `{"reservations":[`+row.body+`,`+body("order_id", `"good"`)+`]}`)
			out := answerAs[api.BatchAnswer](t, b, 200)
			if out.Results[0].Status != row.status || out.Results[0].Problem.Code != row.code || out.Results[1].Status != 201 {
				t.Errorf("in bulk: %s", b.body)
			}
			if f := out.Results[0].Problem.Errors; row.status == 422 && !strings.HasSuffix(f[0].Field, row.field) {
				t.Errorf("in bulk the field is %q, not …%q", f[0].Field, row.field)
			}
			if len(s.world.Operations) != 1 {
				t.Errorf("the desk got %v", s.world.Operations)
			}
		})
	}
}

func TestHostileCallsOfOtherRoutesAreRefused(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 65)
	for _, row := range []struct{ method, path, body, want string }{
		{"POST", "/v1/reservations/a%7Db/confirm", "", "422 invalid order"},
		{"POST", "/v1/reservations/a%20b/confirm", "", "422 invalid order"},
		{"POST", "/v1/reservations/" + long + "/confirm", "", "422 invalid order"},
		{"POST", "/v1/reservations/o%2F1/release", "", "422 invalid order"},
		{"POST", "/v1/reservations/~o1/release", "", "422 invalid order"},
		{"POST", "/v1/reservations/o1/confirm", `{"attempt":"1"}`, "422 invalid attempt"},
		{"POST", "/v1/reservations/o1/confirm", `{"attempt":0}`, "422 invalid attempt"},
		{"POST", "/v1/reservations/o1/confirm", `{"ack":"never"}`, "422 invalid ack"},
		{"POST", "/v1/reservations/o1/confirm", `{"lines":[]}`, "422 invalid lines"},
		{"POST", "/v1/reservations/o1/release", `{"attempt":1}{}`, "422 invalid body"},
		{"POST", "/v1/reservations/o1/release", `{"lines":null}`, "422 invalid lines"},
		{"POST", "/v1/reservations/o1/release", `{"lines":[{"sku":"tea"}]}`, "422 invalid lines[0].quantity"},
		{"POST", "/v1/reservations/o1/release", `{"lines":[{"sku":"tea","quantity":-1}]}`, "422 invalid lines[0].quantity"},
		{"POST", "/v1/reservations/o1/release", `{"lines":[{"sku":"tea","quantity":-0}]}`, "422 invalid lines[0].quantity"},
		{"POST", "/v1/reservations/o1/release", `{"lines":[{"sku":"tea","quantity":1000001}]}`, "422 invalid lines[0].quantity"},
		{"POST", "/v1/reservations/o1/release", `{"lines":[{"sku":"tea","quantity":1},{"sku":"tea","quantity":0}]}`, "422 invalid lines"},
		{"POST", "/v1/reservations/o1/release", `{"lines":[{"sku":"none","quantity":1}]}`, "404 unknown_sku lines[0].sku"},
		{"POST", "/v1/reservations/o1/confirm", `{"lines":[{"sku":"tea","quantity":0}]}`, "422 invalid lines"},
		{"POST", "/v1/reservations/o1/confirm", `{"lines":[` + many(501, `{"sku":"tea","quantity":1}`) + `]}`, "422 invalid lines"},
		{"PUT", "/v1/reservations/o1", ``, "400 malformed "},
		{"PUT", "/v1/reservations/o1", `{}`, "422 invalid lines"},
		{"PUT", "/v1/reservations/o1", `{"lines":[]}`, "422 invalid lines"},
		{"PUT", "/v1/reservations/o1", `{"lines":[{"sku":"tea","quantity":0}]}`, "422 invalid lines[0].quantity"},
		{"PUT", "/v1/reservations/o1", `{"lines":[{"sku":"tea","quantity":1e3}]}`, "422 invalid lines[0].quantity"},
		{"PUT", "/v1/reservations/o1", `{"lines":[{"sku":"tea","quantity":1000000},{"sku":"tea","quantity":1}]}`, "422 invalid lines"},
		{"PUT", "/v1/reservations/o1", `{"lines":[{"sku":"none","quantity":1}]}`, "404 unknown_sku lines[0].sku"},
		{"PUT", "/v1/reservations/o1", `{"buyer":"u2","lines":[{"sku":"tea","quantity":1}]}`, "422 invalid buyer"},
		{"PUT", "/v1/reservations/o%2F1", `{"lines":[{"sku":"tea","quantity":1}]}`, "422 invalid order"},
		{"POST", "/v1/reservations/o1/extend", ``, "400 malformed "},
		{"POST", "/v1/reservations/o1/extend", `{}`, "422 invalid ttl"},
		{"POST", "/v1/reservations/o1/extend", `{"ttl":0}`, "422 invalid ttl"},
		{"POST", "/v1/reservations/o1/extend", `{"ttl":86401}`, "422 invalid ttl"},
		{"POST", "/v1/reservations/o1/extend", `{"ttl":"15m"}`, "422 invalid ttl"},
		{"POST", "/v1/reservations/o1/extend", `{"ttl":60,"until":"2031-05-01T10:00:00Z"}`, "422 invalid until"},
		{"POST", "/v1/reservations/o1/extend", `{"until":"tomorrow"}`, "422 invalid until"},
		{"POST", "/v1/reservations/o1/extend", `{"until":1900000000}`, "422 invalid until"},
		{"POST", "/v1/reservations/o1/extend", `{"until":"1969-12-31T23:59:59Z"}`, "422 invalid until"},
		{"POST", "/v1/reservations/o1/extend", `{"until":"2031-05-01 10:00:00"}`, "422 invalid until"},
		{"POST", "/v1/reservations/o1/fulfil", ``, "400 malformed "},
		{"POST", "/v1/reservations/o1/fulfil", `{}`, "422 invalid document_id"},
		{"POST", "/v1/reservations/o1/fulfil", `{"document_id":"~open:1"}`, "422 invalid document_id"},
		{"POST", "/v1/reservations/o1/fulfil", `{"document_id":"d1","attempt":0}`, "422 invalid attempt"},
		{"POST", "/v1/reservations/o1/fulfil", `{"document_id":"d1","lines":[]}`, "422 invalid lines"},
		{"POST", "/v1/reservations/o1/fulfil", `{"document_id":"d1","lines":[{"sku":"tea","quantity":0}]}`, "422 invalid lines[0].quantity"},
		{"POST", "/v1/reservations/o1/fulfil", `{"document_id":"d1","lines":[` + many(1501, `{"sku":"tea","quantity":1}`) + `]}`, "422 invalid lines"},
		{"POST", "/v1/reservations/o1/fulfil", `{"document_id":"d1","scrap":true}`, "422 invalid scrap"},
		{"POST", "/v1/reservations/o1/cancel", `{"document_id":"d1","reason":"changed mind"}`, "422 invalid reason"},
		{"POST", "/v1/reservations/o1/cancel", `{"document_id":"d1","reason":""}`, "422 invalid reason"},
		{"POST", "/v1/reservations/o1/cancel", `{"document_id":"d1"}`, "404 unknown_order "},
		{"POST", "/v1/reservations/o1/return", `{"document_id":"d1","scrap":"yes"}`, "422 invalid scrap"},
		{"POST", "/v1/reservations/o1/return", `{"document_id":"d1","lines":[{"sku":"tea","quantity":1}]}`, "404 unknown_order "},
		{"POST", "/v1/reservations/~o1/return", `{"document_id":"d1"}`, "422 invalid order"},
		{"POST", "/v1/stock/tea/count", `{"document_id":"d1"}`, "422 invalid counted"},
		{"POST", "/v1/stock/tea/count", `{"document_id":"d1","counted":-1}`, "422 invalid counted"},
		{"POST", "/v1/stock/tea/count", `{"document_id":"d1","counted":1.5}`, "422 invalid counted"},
		{"POST", "/v1/stock/tea/count", `{"document_id":"d1","counted":1,"position":"now"}`, "422 invalid position"},
		{"POST", "/v1/stock/tea/count", `{"document_id":"d1","counted":1,"position":"0-0"}`, "422 invalid position"},
		{"POST", "/v1/stock/tea/count", `{"document_id":"d1","counted":1,"position":7}`, "422 invalid position"},
		{"POST", "/v1/stock/tea/count", `{"document_id":"d1","counted":1,"at":"noon"}`, "422 invalid at"},
		{"POST", "/v1/stock/tea/count", `{"document_id":"d1","counted":1,"position":"1-1","at":"2024-05-01T10:00:00Z"}`, "422 invalid at"},
		{"POST", "/v1/stock/tea/count", `{"counted":1}`, "422 invalid document_id"},
		{"POST", "/v1/stock/none/count", `{"document_id":"d1","counted":1}`, "404 unknown_sku sku"},
		{"POST", "/v1/stock/tea/return", `{"document_id":"d1","quantity":-1}`, "422 invalid quantity"},
		{"POST", "/v1/stock/tea/receive", `{"document_id":"d1","quantity":1,"scrap":true}`, "422 invalid scrap"},
		{"PATCH", "/v1/stock/tea", ``, "400 malformed "},
		{"PATCH", "/v1/stock/tea", `{}`, "422 invalid body"},
		{"PATCH", "/v1/stock/tea", `{"ack":"memory"}`, "422 invalid body"},
		{"PATCH", "/v1/stock/tea", `{"opens_at":null}`, "422 invalid opens_at"},
		{"PATCH", "/v1/stock/tea", `{"opens_at":"2031-13-01T10:00:00Z"}`, "422 invalid opens_at"},
		{"PATCH", "/v1/stock/tea", `{"buyer_limit":-1}`, "422 invalid buyer_limit"},
		{"PATCH", "/v1/stock/tea", `{"buyer_limit":1000000000}`, "422 invalid buyer_limit"},
		{"PATCH", "/v1/stock/tea", `{"buyer_limit":null}`, "422 invalid buyer_limit"},
		{"PATCH", "/v1/stock/tea", `{"frozen":"no"}`, "422 invalid frozen"},
		{"PATCH", "/v1/stock/tea", `{"closed":0}`, "422 invalid closed"},
		{"PATCH", "/v1/stock/tea", `{"closed":true,"closed":false}`, "422 invalid closed"},
		{"PATCH", "/v1/stock/tea", `{"available":5}`, "422 invalid available"},
		{"PATCH", "/v1/stock/none", `{"closed":true}`, "404 unknown_sku sku"},
		{"PATCH", "/v1/stock/%00", `{"closed":true}`, "422 invalid sku"},
		{"DELETE", "/v1/stock/none", ``, "404 unknown_sku sku"},
		{"DELETE", "/v1/stock/" + long, ``, "422 invalid sku"},
		{"POST", "/v1/reservations/o1/confirm", `{`, "400 malformed "},
		{"POST", "/v1/reservations/o1/confirm", `{"ack":"` + strings.Repeat("x", 1<<20) + `"}`, "413 too_large "},
		{"GET", "/v1/reservations/%F0%9F%98%80", "", "422 invalid order"},
		{"GET", "/v1/reservations/o1?receipt=x", "", "422 invalid receipt"},
		{"GET", "/v1/reservations/o1?receipt=0.1.2", "", "422 invalid receipt"},
		{"GET", "/v1/reservations/o1?receipt=0.1.2.3&receipt=0.1.2.4", "", "422 invalid receipt"},
		{"GET", "/v1/reservations/o1?recipt=0.1.2.3", "", "422 invalid recipt"},
		{"PUT", "/v1/stock/" + long, `{"opening":1}`, "422 invalid sku"},
		{"PUT", "/v1/stock/%00", `{"opening":1}`, "422 invalid sku"},
		{"PUT", "/v1/stock/%FF", `{"opening":1}`, "422 invalid sku"},
		{"PUT", "/v1/stock/new", `{}`, "422 invalid opening"},
		{"PUT", "/v1/stock/new", `{"opening":-1}`, "422 invalid opening"},
		{"PUT", "/v1/stock/new", `{"opening":1000000000}`, "422 invalid opening"},
		{"PUT", "/v1/stock/new", `{"opening":1.5}`, "422 invalid opening"},
		{"PUT", "/v1/stock/new", `{"opening":-0}`, "422 invalid opening"},
		{"PUT", "/v1/stock/new", `{"opening":"5"}`, "422 invalid opening"},
		{"PUT", "/v1/stock/new", `{"opening":1,"opening":2}`, "422 invalid opening"},
		{"PUT", "/v1/stock/new", ``, "400 malformed "},
		{"POST", "/v1/stock/tea/receive", `{"document_id":"d1","quantity":0}`, "422 invalid quantity"},
		{"POST", "/v1/stock/tea/receive", `{"document_id":"d1","quantity":-1}`, "422 invalid quantity"},
		{"POST", "/v1/stock/tea/receive", `{"document_id":"d1","quantity":3000000000}`, "422 invalid quantity"},
		{"POST", "/v1/stock/tea/receive", `{"document_id":"d1"}`, "422 invalid quantity"},
		{"POST", "/v1/stock/tea/receive", `{"quantity":1}`, "422 invalid document_id"},
		{"POST", "/v1/stock/tea/receive", `{"document_id":"~open:1","quantity":1}`, "422 invalid document_id"},
		{"POST", "/v1/stock/tea/receive", `{"document_id":7,"quantity":1}`, "422 invalid document_id"},
		{"POST", "/v1/stock/tea/receive", `{"document_id":"d1","quantity":1,"reason":"two words"}`, "422 invalid reason"},
		{"POST", "/v1/stock/tea/receive", `{"document_id":"d1","quantity":1,"reason":"a|b"}`, "422 invalid reason"},
		{"POST", "/v1/stock/tea/receive", `{"document_id":"d1","quantity":1,"note":"` + strings.Repeat("n", 1025) + `"}`, "422 invalid note"},
		{"POST", "/v1/stock/tea/receive", `{"document_id":"d1","quantity":1,"note":"a\u0000"}`, "422 invalid note"},
		{"POST", "/v1/stock/tea/adjust", `{"document_id":"d1","quantity":0,"reason":"x"}`, "422 invalid quantity"},
		{"POST", "/v1/stock/tea/adjust", `{"document_id":"d1","quantity":-9223372036854775808,"reason":"x"}`, "422 invalid quantity"},
		{"POST", "/v1/stock/tea/adjust", `{"document_id":"d1","quantity":-1}`, "422 invalid reason"},
		{"POST", "/v1/stock/none/adjust", `{"document_id":"d1","quantity":-1,"reason":"x"}`, "404 unknown_sku sku"},
		{"GET", "/v1/stock/none", "", "404 unknown_sku sku"},
		{"POST", "/v1/reservations:batch", `{"reservations":[]}`, "422 invalid reservations"},
		{"POST", "/v1/reservations:batch", `{}`, "422 invalid reservations"},
		{"POST", "/v1/reservations:batch", `{"orders":[]}`, "422 invalid orders"},
		{"POST", "/v1/reservations:batch", `{"reservations":[{"order_id":"a","order_id":"b"}]}`, "422 invalid reservations[0].order_id"},
		{"POST", "/v1/reservations:batch", `{"reservations":[{"order_id":"` + strings.Repeat("a", 5<<20) + `"}]}`, "413 too_large "},
		{"GET", "/", "", "404 not_found "},
		{"GET", "/v2/stock/tea", "", "404 not_found "},
		{"GET", "/v1/stock/", "", "404 not_found "},
		{"GET", "/v1/stock/tea/", "", "404 not_found "},
		{"POST", "/v1//reservations", "{}", "404 not_found "},
		{"POST", "/v1/stock/a/b/receive", `{"document_id":"d1","quantity":1}`, "404 not_found "},
	} {
		t.Run(row.method+" "+cut(row.path)+" "+cut(row.body), func(t *testing.T) {
			t.Parallel()
			s := openShop(t, 1)
			r := s.send(row.method, row.path, row.body)
			p := r.problem(t)
			got := fmt.Sprintf("%d %s ", r.status, p.Code)
			if len(p.Errors) > 0 {
				got += p.Errors[0].Field
			}
			if got != row.want {
				t.Errorf("got %q, want %q: %s", got, row.want, r.body)
			}
			if len(s.world.Operations) != 0 {
				t.Errorf("the desk got %v", s.world.Operations)
			}
		})
	}
}

func TestAWrongMethodNamesTheRightOnes(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1)
	for path, want := range map[string]string{
		"/v1/reservations": "POST", "/v1/reservations/o1": "GET, PUT", "/v1/stock/tea": "DELETE, GET, PATCH, PUT", "/v1/reservations:batch": "POST",
	} {
		for _, method := range []string{"POST", "DELETE", "PATCH", "HEAD", "OPTIONS", "BREW"} {
			if strings.Contains(want, method) {
				continue
			}
			r := s.send(method, path, "")
			if p := r.problem(t); r.status != http.StatusMethodNotAllowed || p.Code != api.CodeMethod || r.header.Get("Allow") != want {
				t.Errorf("%s %s: %d, Allow %q, want %q", method, path, r.status, r.header.Get("Allow"), want)
			}
		}
	}
}

func TestOnlyJSONIsTaken(t *testing.T) {
	t.Parallel()
	for media, want := range map[string]int{
		"application/json": 201, "application/json; charset=utf-8": 201, "APPLICATION/JSON;charset=UTF-8": 201,
		"": 415, "text/plain": 415, "application/x-www-form-urlencoded": 415, "application/json; charset=latin1": 415,
		"multipart/form-data; boundary=x": 415, "application/problem+json": 415, ";;": 415,
	} {
		s := openShop(t, 1)
		r := s.sendAs("POST", "/v1/reservations", media, body("", ""))
		if r.status != want {
			t.Errorf("%q: %d, want %d", media, r.status, want)
		}
		if want == 415 {
			if p := r.problem(t); p.Code != api.CodeMediaType || len(s.world.Operations) != 0 {
				t.Errorf("%q: %+v, the desk got %v", media, p, s.world.Operations)
			}
		}
	}
}

func TestABodyOfUnknownLengthIsBoundedToo(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1)
	long := body("order_id", `"`+strings.Repeat("a", 200<<10)+`"`)
	r := s.chunked("POST", "/v1/reservations", long)
	if p := r.problem(t); r.status != 413 || !strings.Contains(p.Detail, fmt.Sprint(64<<10+500*128)) {
		t.Errorf("%d %s", r.status, r.body)
	}
}

func FuzzReserveBody(f *testing.F) {
	for _, row := range append(append(quantities(), texts()...), shapes()...) {
		if len(row.body) < 4096 {
			f.Add([]byte(row.body))
		}
	}
	f.Add([]byte(body("", "")))
	f.Add([]byte(body("lines", `[{"sku":"}{","quantity":2},{"sku":"a/b ☕","quantity":1}]`)))
	f.Fuzz(func(t *testing.T, text []byte) {
		s := openShop(t, 1)
		r := s.send("POST", "/v1/reservations", string(text))
		switch {
		case r.status == 201:
			if len(s.world.Operations) != 1 {
				t.Fatalf("%q: 201 after %v", text, s.world.Operations)
			}
			again := s.send("POST", "/v1/reservations", string(text))
			a, b := answerAs[api.Reservation](t, r, 201), answerAs[api.Reservation](t, again, 200)
			a.Replayed = true
			if diff := cmp.Diff(a, b); diff != "" {
				t.Fatalf("%q sent again: %s", text, diff)
			}
		case r.status == 202: // a sale from memory
		case r.status >= 400 && r.status < 500:
			p := r.problem(t)
			if p.Code != api.CodeSoldOut && len(s.world.Operations) != 0 {
				t.Fatalf("%q: %s after %v", text, p.Code, s.world.Operations)
			}
		default:
			t.Fatalf("%q: %d %s %v", text, r.status, r.body, s.tally.crashes)
		}
	})
}
