package event_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stockpipe/stockpipe/pkg/event"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// The golden files pin version 1 of the grammar: texts that stand in logs, records and ledgers somewhere, each
// with the Go value that it means, in JSON. A line may be added. To change or remove one is to say that what is
// stored no longer means what it meant: that takes a new version letter, a reader for the old one, and a library
// of a new version beside the old one (decision 0001).

// golden calls check with each text of a file and the JSON that stands behind it, after a tab.
func golden(t testing.TB, name string, check func(text string, value []byte)) {
	t.Helper()
	file, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(file)) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		text, value, ok := strings.Cut(line, "\t")
		if !ok {
			t.Fatalf("%s: no tab in %q", name, line)
		}
		n++
		check(text, []byte(value))
	}
	if n < 5 {
		t.Errorf("%s has %d lines only", name, n)
	}
}

// meaning reads the JSON strictly and checks both directions.
func meaning[T any](t *testing.T, text string, value []byte, parse func(string) (T, error), print func(T) string) {
	t.Helper()
	var want T
	decoder := json.NewDecoder(bytes.NewReader(value))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&want); err != nil {
		t.Fatalf("%s: %v", value, err)
	}
	got, err := parse(text)
	if err != nil {
		t.Errorf("%s: %v", text, err)
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s no longer means what it meant (-golden +now), now %s:\n%s", text, compact(got), diff)
	}
	if again := print(want); again != text {
		t.Errorf("%s is no longer written as it was: %s", text, again)
	}
}

// compact is JSON without zero fields, to paste into a golden file.
func compact(value any) string {
	text, err := json.Marshal(nonzero(reflect.ValueOf(value)))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func nonzero(v reflect.Value) any {
	switch v.Kind() {
	case reflect.Struct:
		fields := map[string]any{}
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if v.Field(i).IsZero() {
				continue
			}
			if inner, ok := nonzero(v.Field(i)).(map[string]any); ok && f.Anonymous {
				for name, value := range inner {
					fields[name] = value
				}
				continue
			}
			fields[f.Name] = nonzero(v.Field(i))
		}
		return fields
	case reflect.Slice:
		all := []any{}
		for i := range v.Len() {
			all = append(all, nonzero(v.Index(i)))
		}
		return all
	}
	return v.Interface()
}

func TestBodiesMeanWhatTheyMeant(t *testing.T) {
	t.Parallel()
	golden(t, "bodies.golden", func(text string, value []byte) {
		meaning(t, text, value, event.ParseBody, func(op stock.Operation) string { return string(event.AppendBody(nil, &op)) })
	})
}

func TestOperationsMeanWhatTheyMeant(t *testing.T) {
	t.Parallel()
	golden(t, "operations.golden", func(text string, value []byte) {
		meaning(t, text, value, event.ParseOperations, func(ops []stock.Operation) string { return string(event.AppendOperations(nil, ops)) })
	})
}

// An entry stands in the file as the JSON of its raw fields.
func TestEntriesMeanWhatTheyMeant(t *testing.T) {
	t.Parallel()
	golden(t, "entries.golden", func(text string, value []byte) {
		meaning(t, text, value,
			func(text string) (event.Entry, error) {
				var raw event.Raw
				if err := json.Unmarshal([]byte(text), &raw); err != nil {
					t.Fatalf("%s: %v", text, err)
				}
				return raw.Parse()
			},
			func(e event.Entry) string {
				var b bytes.Buffer
				encoder := json.NewEncoder(&b)
				encoder.SetEscapeHTML(false)
				_ = encoder.Encode(e.Raw())
				return strings.TrimSuffix(b.String(), "\n")
			})
	})
}

func TestRecordsMeanWhatTheyMeant(t *testing.T) {
	t.Parallel()
	golden(t, "records.golden", func(text string, value []byte) {
		meaning(t, text, value,
			func(text string) (stock.Reservation, error) { return event.ParseRecord(3, "o1", text) },
			func(r stock.Reservation) string { return event.FormatRecord(&r) })
	})
}

func TestFieldsMeanWhatTheyMeant(t *testing.T) {
	t.Parallel()
	golden(t, "fields.golden", func(text string, value []byte) {
		meaning(t, text, value, event.ParseField, event.Field.String)
	})
}
