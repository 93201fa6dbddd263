package stock

import (
	"cmp"
	"fmt"
	"slices"
)

// A Line is one SKU of an order: what was asked for, and how much of it stands now. The two differ once a
// part was confirmed, released, replaced, cancelled or fulfilled, or when not all of it was there to take.
type Line struct {
	SKU       int64 // the SKU's number in the ledger, at least 1
	Asked     int64 // units asked for, 0 for a line that only a replace brought; in a document the signed movement
	Now       int64 // units that are held or committed now; of an ended order those that it gave back last
	Fulfilled int64 // units that were shipped, of a confirmed order
}

// Lines are the lines of one order in canonical form: one a SKU, ordered by SKU number.
type Lines []Line

// Canonical sums lines of the same SKU and orders them by SKU number, so that two writings of one order
// compare as equal. It fails when a quantity or a sum leaves 1..1,000,000, a SKU number is below 1, or there are
// more than most lines; the errors are *FieldError. An order without lines is refused.
func Canonical(lines []Line, most int) (Lines, error) {
	if len(lines) == 0 {
		return nil, BadField("lines", "[]", "name at least one line")
	}
	if len(lines) > most {
		return nil, BadField("lines", fmt.Sprint(len(lines)), fmt.Sprintf("use at most %d lines", most))
	}
	// Each line by itself first: a negative one would otherwise hide in a sum, and bounded ones cannot overflow it.
	for i := range lines {
		if err := checkLine(i, &lines[i]); err != nil {
			return nil, err
		}
	}
	out := slices.Clone(lines)
	slices.SortStableFunc(out, func(a, b Line) int { return cmp.Compare(a.SKU, b.SKU) })
	n := 0
	for i, l := range out {
		if i > 0 && out[n-1].SKU == l.SKU {
			out[n-1].Asked += l.Asked
		} else {
			out[n] = l
			n++
		}
		last := &out[n-1]
		last.Now = last.Asked
		if last.Asked > MaxLineQuantity {
			return nil, BadField("lines", fmt.Sprint(last.Asked), "the quantities of one SKU must sum to 1 to 1000000")
		}
	}
	return Lines(out[:n:n]), nil
}

// checkLine names the line only when it is refused: an accepted order pays nothing for the name.
func checkLine(i int, l *Line) error {
	if l.SKU < 1 {
		return BadField(fmt.Sprintf("lines[%d].sku", i), fmt.Sprint(l.SKU), "use the number of a SKU, from 1")
	}
	if l.Asked < 1 || l.Asked > MaxLineQuantity {
		return CheckLineQuantity(fmt.Sprintf("lines[%d].quantity", i), l.Asked)
	}
	return nil
}

// Units is the sum of what stands now, over all lines.
func (l Lines) Units() int64 {
	var sum int64
	for i := range l {
		sum += l[i].Now
	}
	return sum
}
