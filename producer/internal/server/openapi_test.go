package server

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/order"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

type description struct {
	OpenAPI    string `json:"openapi"`
	Paths      map[string]map[string]operation
	Components struct {
		SecuritySchemes map[string]struct{ Type, Scheme string }
		Schemas         map[string]struct {
			Properties           map[string]any
			AdditionalProperties any `json:"additionalProperties"`
		}
	}
}

type operation struct {
	OperationID string `json:"operationId"`
	Security    []map[string][]string
	Responses   map[string]struct {
		Description string
		Content     map[string]any
	}
}

func served(t *testing.T) description {
	t.Helper()
	r := openShop(t, 1).send("GET", "/v1/openapi.json", "")
	var d description
	if err := json.Unmarshal(r.body, &d); err != nil || r.status != 200 {
		t.Fatalf("%d %v", r.status, err)
	}
	if strings.Contains(string(r.body), "http://") || strings.Contains(string(r.body), "https://") {
		t.Error("the description points to other hosts")
	}
	return d
}

func TestTheDescriptionHasEveryRouteAndNoOther(t *testing.T) {
	t.Parallel()
	d := served(t)
	if d.OpenAPI != "3.1.0" {
		t.Errorf("it is OpenAPI %s", d.OpenAPI)
	}
	var want, got []string
	for _, rt := range routes {
		want = append(want, rt.method+" "+rt.path+" "+rt.name)
	}
	for path, methods := range d.Paths {
		for method, op := range methods {
			got = append(got, strings.ToUpper(method)+" "+path+" "+op.OperationID)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestTheDescriptionHasEveryFieldAndNoOther(t *testing.T) {
	t.Parallel()
	d := served(t)
	read := map[string][]string{
		"ReserveRequest": reserveFields, "Line": lineFields, "AttemptRequest": attemptFields, "OpeningRequest": openingFields,
		"ReceiveRequest": moveFields, "AdjustRequest": moveFields, "BatchRequest": batchFields, "Result": lineFields,
		"ReplaceRequest": replaceFields, "ExtendRequest": extendFields, "AmendRequest": amendFields, "ReturnRequest": returnFields,
		"StockReturnRequest": takeBackFields, "CountRequest": countFields, "SettingsRequest": settingFields,
	}
	for name, fields := range read {
		schema := d.Components.Schemas[name]
		got := slices.Sorted(maps.Keys(schema.Properties))
		if diff := cmp.Diff(slices.Sorted(slices.Values(fields)), got); diff != "" || schema.AdditionalProperties != false {
			t.Errorf("%s: %s", name, diff)
		}
	}
	full := order.Answer{ID: "o", State: stock.Held, Level: order.Memory, ExpiresMillis: 1, Lines: []order.Part{{SKU: "s", Asked: 3, Quantity: 1, Fulfilled: 1}}}
	var written map[string]any
	if err := json.Unmarshal(appendReservation(nil, &full), &written); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(d.Components.Schemas["Reservation"].Properties)), slices.Sorted(maps.Keys(written))); diff != "" {
		t.Errorf("the answer of the hot path: %s", diff)
	}
	line := written["lines"].([]any)[0].(map[string]any)
	if diff := cmp.Diff(slices.Sorted(maps.Keys(d.Components.Schemas["OrderLine"].Properties)), slices.Sorted(maps.Keys(line))); diff != "" {
		t.Errorf("a line of the hot path: %s", diff)
	}
	for _, value := range []any{api.Problem{}, api.Hold{}, api.OrderLine{}, api.Settings{}, api.SettingsAnswer{}, api.DeleteAnswer{}, api.Order{}, api.Match{}, api.Record{}, api.Stock{}, api.Document{}, api.BatchAnswer{}, api.BatchResult{}} {
		kind := reflect.TypeOf(value)
		var want []string
		for i := range kind.NumField() {
			name, _, _ := strings.Cut(kind.Field(i).Tag.Get("json"), ",")
			want = append(want, name)
		}
		slices.Sort(want)
		if diff := cmp.Diff(want, slices.Sorted(maps.Keys(d.Components.Schemas[kind.Name()].Properties))); diff != "" {
			t.Errorf("%s: %s", kind.Name(), diff)
		}
	}
}

// The readers accept exactly the fields that they tell: each case label of a switch over a field's name is in a list.
func TestTheReadersKnowTheFieldsThatTheyTell(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]bool{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SwitchStmt); ok {
				if tag, ok := s.Tag.(*ast.Ident); ok && tag.Name == "name" {
					addLabels(s, labels)
				}
			}
			return true
		})
	}
	labels["reservations"] = true // of bulk requests, read without a switch
	told := map[string]bool{}
	for _, list := range [][]string{
		reserveFields, lineFields, attemptFields, replaceFields, extendFields, amendFields, returnFields, batchFields,
		openingFields, moveFields, takeBackFields, countFields, settingFields,
	} {
		for _, f := range list {
			told[f] = true
		}
	}
	if diff := cmp.Diff(told, labels); diff != "" {
		t.Error(diff)
	}
}

func addLabels(s *ast.SwitchStmt, labels map[string]bool) {
	for _, stmt := range s.Body.List {
		for _, e := range stmt.(*ast.CaseClause).List {
			if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				labels[strings.Trim(lit.Value, `"`)] = true
			}
		}
	}
}

func TestEveryCodeHasAStatusAndARoute(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "../../../pkg/api/problem.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	codes := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(v.Names[0].Name, "Code") {
			text, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Error(err)
			}
			codes[text] = true
		}
		return true
	})
	told := map[string]bool{api.CodeNotFound: true, api.CodeMethod: true} // of paths that are no route
	for _, methods := range served(t).Paths {
		for _, op := range methods {
			for status, r := range op.Responses {
				list, isProblem := strings.CutPrefix(r.Description, "code: ")
				for code := range strings.SplitSeq(list, ", ") {
					if isProblem {
						told[code] = true
						if strconv.Itoa(kinds[code].status) != status {
							t.Errorf("%s is told under %s", code, status)
						}
					}
				}
			}
		}
	}
	for code := range codes {
		if kinds[code].status == 0 || kinds[code].title == "" || !told[code] {
			t.Errorf("code %q has status %d, title %q, told: %v", code, kinds[code].status, kinds[code].title, told[code])
		}
	}
	if len(codes) != len(kinds) {
		t.Errorf("%d codes, %d kinds", len(codes), len(kinds))
	}
}
