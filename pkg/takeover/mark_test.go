package takeover

import (
	"errors"
	"fmt"
	"testing"
)

func TestMarksKnowWhatIsWanted(t *testing.T) {
	t.Parallel()
	m := newMarks()
	for i := range 1000 {
		m.add(fmt.Sprint("f", i), fmt.Sprint("text ", i))
	}
	if err := m.sort(); err != nil {
		t.Fatal(err)
	}
	places := map[int]bool{}
	for i := range 1000 {
		at, known, same := m.find(fmt.Sprint("f", i), fmt.Sprint("text ", i))
		if !known || !same {
			t.Errorf("f%d: known %v, same %v", i, known, same)
		}
		places[at] = true
		if _, known, same := m.find(fmt.Sprint("f", i), "another"); !known || same {
			t.Errorf("f%d with another text: known %v, same %v", i, known, same)
		}
		if _, known, same := m.find(fmt.Sprint("g", i), fmt.Sprint("text ", i)); known || same {
			t.Errorf("g%d: known %v, same %v", i, known, same)
		}
	}
	if len(places) != 1000 {
		t.Errorf("%d places of 1000 fields", len(places))
	}
}

// No collision can be made to order, so it is written into the marks.
func TestACollisionNeverPassesForWhatIsWanted(t *testing.T) {
	t.Parallel()
	m := newMarks()
	m.add("tea", "same text")
	x := m.of("mug", "another")
	x.field = m.of("tea", "").field
	m.keep(x)
	if err := m.sort(); !errors.Is(err, ErrDisagrees) {
		t.Errorf("two wanted fields with one hash: %v", err)
	}
	m = newMarks()
	x = m.of("wanted", "same text")
	x.field = m.of("extra", "").field
	m.keep(x)
	if err := m.sort(); err != nil {
		t.Fatal(err)
	}
	if _, known, same := m.find("extra", "same text"); !known || same {
		t.Errorf("an extra field with the hash and the text of a wanted one: known %v, same %v", known, same)
	}
}

func TestMarksOfTwoAttemptsDiffer(t *testing.T) {
	t.Parallel()
	if a, b := newMarks().of("f", "t"), newMarks().of("f", "t"); a.field == b.field || a.whole == b.whole {
		t.Errorf("%v and %v", a, b)
	}
}

func TestASightCountsEachOnce(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 63, 64, 65, 1000} {
		m := newMarks()
		m.n = n
		s, first := m.unseen(), 0
		for range 2 {
			for at := range n {
				if s.see(at) {
					first++
				}
			}
		}
		if first != n {
			t.Errorf("%d of %d", first, n)
		}
	}
}
