package protocol

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/stockpipe/stockpipe/pkg/redisstock"
	"github.com/stockpipe/stockpipe/pkg/stock/stocktest"
)

// A mutant is the library with one line changed. A machine that does not find it would not find the mistake
// either.
type mutant struct {
	name, line, by string
	tables         bool // the scenario tables find it, too
}

var mutants = []mutant{
	{"carts are not checked for stock",
		"if available[slotOf[lines.sku[i]]] < lines.units[i] then short = true break end", "", true},
	{"a repeat within a call takes again",
		"fresh[name] or records[i + 1]", "records[i + 1]", false},
	{"a hold can be expired at any time",
		"if tonumber(expires) > time then return 'd' .. record end", "", true},
	{"a repeat takes again",
		"if o.attempt < had then return '=' .. record end\n    if o.attempt == had then", "if o.attempt < had then return '=' .. record end\n    if false then", true},
	{"the SKUs are not written",
		"call('HSET', keys[1], unpack(fields, 1, k))", "call('HSET', keys[1], 'q', fields[2])", true},
	{"a rush on one SKU sells one too many",
		"local taken = floor(available[1] / units)", "local taken = floor(available[1] / units) + 1", true},
	{"the records are not written",
		"call('HSET', keys[2], unpack(records, 1, count + 2))", "call('HSET', keys[2], '~', records[count + 2])", true},
	{"what has ended can be released again",
		"if o.attempt < had or was ~= 'h' then", "if o.attempt < had then", true},
	{"the next attempt does not wait for the end of the earlier",
		"o.attempt > had and not ENDED[was]", "false", true},
	{"a late confirm ignores that a SKU is frozen",
		"local why = refusal(wanted, time, who) or overLimit(wanted, who) or shortage(wanted)", "local why = overLimit(wanted, who) or shortage(wanted)", true},
	{"a full call says of what did not fit that it is unknown",
		"lines[i] = '>'", "lines[i] = '?'", false},
	{"an emptied hash of orders is not noticed",
		" or mark ~= markOf(mine)", "", false},
	{"a restarted process sells",
		"if not mine then return 'FENCED' end\n  if mine.e ~= e", "if not mine then mine = { e = e, n = nonce, q = q, epoch = match(e, '%d+$') } fenced[keys[1]] = mine end\n  if mine.e ~= e", false},
	{"a limit is not looked at",
		"if have.now + lines.units[i] > limit then", "if false then", true},
	{"a replace pays for what the order holds already",
		"more[i] = all.now[i] - all.was[i]", "more[i] = all.now[i]", true},
	{"a parcel leaves the record alone",
		"if not o.order or o.asked == 0 or (o.committed == 0) then return nil end", "if true then return nil end", true},
	{"a refused document leaves no entry",
		"if first == '+' or first == 'm' then", "if first == '+' then", true},
}

// mostHistories bounds how long a mutant may live.
const mostHistories = 60

func TestEveryMutantOfTheLibraryIsKilled(t *testing.T) {
	t.Parallel()
	for i, m := range chosenMutants() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t, withClock(t, swap(t, redisstock.Library(), m.line, m.by)), houseShards)
			for n := range mostHistories {
				var err error
				rapid.Custom(func(r *rapid.T) bool {
					err = history(t.Context(), r, h, n, 1, newSights())
					return true
				}).Example(i*mostHistories + n)
				if err != nil {
					t.Logf("killed by history %d: %.300s", n+1, err.Error())
					return
				}
			}
			t.Errorf("it lives after %d histories", mostHistories)
		})
	}
}

// fewMutants are tried in every run, all of them in a long one.
const fewMutants = 5

func chosenMutants() []mutant {
	if long {
		return mutants
	}
	return mutants[:fewMutants]
}

func TestTheTablesKillMutantsOfTheLibrary(t *testing.T) {
	t.Parallel()
	scripts, err := stocktest.Scripts()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range chosenMutants() {
		if !m.tables {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, withClock(t, swap(t, redisstock.Library(), m.line, m.by)), 1)
			for _, script := range scripts {
				if err := s.begin(t.Context(), true); err != nil {
					t.Fatal(err)
				}
				if err := stocktest.Play(t.Context(), s, script); err != nil {
					t.Logf("killed by %v", err)
					return
				}
			}
			t.Error("it lives")
		})
	}
}
