package takeover

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"slices"
)

// A mark is what an attempt remembers of one field that Redis has to have: 16 bytes, whatever its name and text.
type mark struct {
	field uint64 // hash of its name
	whole uint64 // another hash, of name and text
}

// marks are those of one hash. The text of a day of orders does not fit into the memory of a small process, and the
// process that runs a takeover must not die of it.
//
// Hashes collide, and no collision may open a wrong shard. What is put is decided without them: Redis is asked for each
// field by its name. They decide what is extra and whether Redis, read back, is what was put:
//
//   - Two wanted fields with one hash of their names: where the marks are used, that is found (neighbours once they are
//     sorted) and ends the attempt.
//   - An extra field with the hash of a wanted one: it is taken for that one, so it is not deleted. Its second hash has
//     a seed of its own and covers the name, so it differs, whatever text the field has: reading back finds a field that
//     is not what was put, and ends the attempt.
//   - A wrong text of a wanted field passes if the second hashes agree: once in 2^64, and only if somebody writes into
//     the closed shard between the put and the reading back. One that stands in for a field which that somebody took
//     away would have to agree in both.
//
// The seeds are new in each attempt, so the next one does not meet the same collision, and nobody can prepare one.
type marks struct {
	names, fields, texts maphash.Seed

	n      int
	parts  [256][]mark // by the first byte of the name's hash: none of them is large, so none needs much when it grows
	starts [256]int    // how many marks lie before each part, once they are sorted
	sorted bool
}

func newMarks() *marks {
	return &marks{names: maphash.MakeSeed(), fields: maphash.MakeSeed(), texts: maphash.MakeSeed()}
}

func (m *marks) of(field, text string) mark {
	return mark{maphash.String(m.names, field), maphash.String(m.fields, field) ^ maphash.String(m.texts, text)}
}

func (x mark) part() int { return int(x.field >> 56) }

func (m *marks) add(field, text string) { m.keep(m.of(field, text)) }

func (m *marks) keep(x mark) {
	m.parts[x.part()] = append(m.parts[x.part()], x)
	m.n++
}

// sort makes them ready to be looked up. The error is an ErrDisagrees: two have one hash.
func (m *marks) sort() error {
	if m.sorted {
		return nil
	}
	before := 0
	for p, part := range m.parts {
		slices.SortFunc(part, func(a, b mark) int { return cmp.Compare(a.field, b.field) })
		for i := range part {
			if i > 0 && part[i].field == part[i-1].field {
				return fmt.Errorf("two fields have one hash, by chance: the next attempt has others: %w", ErrDisagrees)
			}
		}
		m.starts[p] = before
		before += len(part)
	}
	m.sorted = true
	return nil
}

// find looks a field up by its name's hash: where it is among all, whether it is there, and whether it is as wanted, text
// included.
func (m *marks) find(field, text string) (at int, known, same bool) {
	x := m.of(field, text)
	part := m.parts[x.part()]
	i, known := slices.BinarySearchFunc(part, x.field, func(y mark, field uint64) int { return cmp.Compare(y.field, field) })
	return m.starts[x.part()] + i, known, known && part[i].whole == x.whole
}

// A sight is which of the marks were seen: a bit each.
type sight []uint64

func (m *marks) unseen() sight { return make(sight, (m.n+63)/64) }

// see reports whether it is the first time.
func (s sight) see(at int) bool {
	word, bit := at/64, uint64(1)<<(at%64)
	first := s[word]&bit == 0
	s[word] |= bit
	return first
}
