package orderfile

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/stockpipe/stockpipe/pkg/stock"
)

// columns are the ones that are needed, each under the names that files of this kind give it, in small letters
// and without spaces.
var columns = [...]struct {
	name    string
	aliases []string
}{
	{"InvoiceNo", []string{"invoiceno", "invoice"}},
	{"StockCode", []string{"stockcode"}},
	{"Quantity", []string{"quantity"}},
}

// Places in the table of columns.
const (
	invoiceColumn = iota
	codeColumn
	quantityColumn
)

// parser gathers a file line by line.
type parser struct {
	at    [len(columns)]int    // place of each needed column
	named [len(columns)]string // and how the header writes it

	invoices map[string]*invoice
	order    []*invoice // in order of first appearance
	skus     map[string]*SKU
	skuOrder []*SKU

	lines    int
	mistakes MalformedError
}

// invoice is what was seen of one invoice number; its lines may be scattered over the file.
type invoice struct {
	id       string
	sold     sums
	returned sums
	negative int // lines
}

// sums adds up quantities by SKU, in order of first appearance.
type sums struct {
	lines []Line
	place map[string]int
}

// add returns the line as it stands afterwards.
func (s *sums) add(sku string, quantity int64, number int) Line {
	i, ok := s.place[sku]
	if !ok {
		if s.place == nil {
			s.place = map[string]int{}
		}
		i = len(s.lines)
		s.place[sku] = i
		s.lines = append(s.lines, Line{SKU: sku, number: number})
	}
	s.lines[i].Quantity += quantity
	return s.lines[i]
}

func newParser() *parser {
	return &parser{invoices: map[string]*invoice{}, skus: map[string]*SKU{}}
}

// read takes the whole file. What is wrong with single fields is gathered; what makes the rest unreadable ends it.
func (p *parser) read(r io.Reader) error {
	text := bufio.NewReaderSize(r, 1<<16)
	if err := skipMark(text); err != nil {
		return err
	}
	table := csv.NewReader(text)
	table.ReuseRecord = true
	header, err := table.Read()
	if errors.Is(err, io.EOF) {
		return malformed(1, "", "", "the file is empty: begin it with a header that names "+needed())
	}
	if err != nil {
		return p.withEarlier(unreadable(err))
	}
	if err := p.header(header); err != nil {
		return err
	}
	for {
		record, err := table.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return p.withEarlier(unreadable(err))
		}
		if p.lines++; p.lines > MaxLines {
			return malformed(lineOf(table, 0), "", "", fmt.Sprintf("more than %d lines: cut the file into several", MaxLines))
		}
		p.take(record, table)
	}
}

// skipMark leaves out the byte order mark that spreadsheets write.
func skipMark(text *bufio.Reader) error {
	mark, err := text.Peek(3)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	switch {
	case bytes.HasPrefix(mark, []byte{0xEF, 0xBB, 0xBF}):
		_, err = text.Discard(3)
		return err
	case bytes.HasPrefix(mark, []byte{0xFF, 0xFE}), bytes.HasPrefix(mark, []byte{0xFE, 0xFF}):
		return malformed(1, "", "", "the file is UTF-16: save it as CSV in UTF-8")
	case bytes.HasPrefix(mark, []byte("PK\x03")):
		return malformed(1, "", "", "the file is a spreadsheet or an archive: save it as CSV in UTF-8")
	}
	return nil
}

func (p *parser) header(record []string) error {
	for c, column := range columns {
		p.at[c] = -1
		for i, name := range record {
			if !answersTo(name, column.aliases) {
				continue
			}
			if p.at[c] >= 0 {
				return malformed(1, column.name, quoted(name), fmt.Sprintf("two columns have this name (%d and %d): leave one", p.at[c]+1, i+1))
			}
			p.at[c], p.named[c] = i, strings.TrimSpace(name)
		}
		if p.at[c] < 0 {
			return malformed(1, column.name, "", fmt.Sprintf("there is no such column, only %s: the header must name %s", quoted(strings.Join(record, ",")), needed()))
		}
	}
	return nil
}

func answersTo(name string, aliases []string) bool {
	name = strings.ToLower(strings.NewReplacer(" ", "", "_", "").Replace(name))
	for _, alias := range aliases {
		if name == alias {
			return true
		}
	}
	return false
}

// take judges one line and adds it up.
func (p *parser) take(record []string, table *csv.Reader) {
	// The record is overwritten by the next one; what is kept of it is cloned where it is new.
	id, code, text := record[p.at[invoiceColumn]], record[p.at[codeColumn]], record[p.at[quantityColumn]]
	number := func(column int) int { return lineOf(table, p.at[column]) }

	known := p.invoices[id]
	if known == nil {
		if err := stock.CheckOrderID("", id); err != nil {
			p.complain(number(invoiceColumn), invoiceColumn, id, err)
			return
		}
	}
	if p.skus[code] == nil {
		if err := stock.CheckSKU("", code); err != nil {
			p.complain(number(codeColumn), codeColumn, code, err)
			return
		}
	}
	quantity, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	switch {
	case err != nil:
		p.refuse(number(quantityColumn), quantityColumn, text, "use a whole number, negative for what comes back")
		return
	case quantity == 0:
		p.refuse(number(quantityColumn), quantityColumn, text, "a line moves at least one unit: use a number above or below 0")
		return
	case quantity > stock.MaxLineQuantity || quantity < -stock.MaxMovementQuantity:
		p.refuse(number(quantityColumn), quantityColumn, text, fmt.Sprintf("use %d to %d", -stock.MaxMovementQuantity, stock.MaxLineQuantity))
		return
	}
	if known == nil {
		known = &invoice{id: strings.Clone(id)}
		p.invoices[known.id] = known
		p.order = append(p.order, known)
	}
	p.add(known, p.sku(code), quantity, number(quantityColumn))
}

func (p *parser) sku(code string) *SKU {
	s := p.skus[code]
	if s == nil {
		s = &SKU{Text: strings.Clone(code)}
		p.skus[s.Text] = s
		p.skuOrder = append(p.skuOrder, s)
	}
	return s
}

// add books a line, and refuses the one with which a sum leaves its bounds.
func (p *parser) add(v *invoice, s *SKU, quantity int64, number int) {
	s.Net += quantity
	if quantity < 0 {
		v.negative++
		if line := v.returned.add(s.Text, -quantity, number); line.Quantity > stock.MaxMovementQuantity {
			p.refuse(number, quantityColumn, fmt.Sprint(quantity), fmt.Sprintf("with it invoice %s returns more than %d units of %s", v.id, stock.MaxMovementQuantity, quoted(s.Text)))
		}
		return
	}
	s.Opening += quantity
	line := v.sold.add(s.Text, quantity, number)
	switch {
	case line.Quantity > stock.MaxLineQuantity:
		p.refuse(number, quantityColumn, fmt.Sprint(quantity), fmt.Sprintf("with it invoice %s sells more than %d units of %s", v.id, stock.MaxLineQuantity, quoted(s.Text)))
	case len(v.sold.lines) == stock.MaxOrderLines+1 && line.number == number:
		p.refuse(number, codeColumn, s.Text, fmt.Sprintf("with it invoice %s has more than %d different SKUs", v.id, stock.MaxOrderLines))
	case s.Opening > stock.MaxMovementQuantity:
		p.refuse(number, quantityColumn, fmt.Sprint(quantity), fmt.Sprintf("with it the file sells more than %d units of %s", stock.MaxMovementQuantity, quoted(s.Text)))
	}
}

// finish turns what was gathered into a File.
func (p *parser) finish() (*File, error) {
	f := &File{Invoices: len(p.order), Lines: p.lines}
	for _, v := range p.order {
		p.settle(f, v)
	}
	if len(p.mistakes.Mistakes) > 0 {
		slices.SortStableFunc(p.mistakes.Mistakes, func(a, b Mistake) int { return a.Line - b.Line })
		return nil, &p.mistakes
	}
	if f.Lines == 0 {
		return nil, malformed(1, "", "", "there is nothing below the header")
	}
	for _, s := range p.skuOrder {
		f.SKUs = append(f.SKUs, *s)
	}
	return f, nil
}

// settle writes down what one invoice asks for.
func (p *parser) settle(f *File, v *invoice) {
	if len(v.sold.lines) > 0 {
		sale := Sale{Order: v.id, Lines: v.sold.lines}
		f.UnitsOut += sale.Units()
		f.Sales = append(f.Sales, sale)
	}
	if len(v.returned.lines) == 0 {
		return
	}
	credit := strings.HasPrefix(v.id, "C")
	if credit {
		f.Credits++
		f.CreditLines += v.negative
	} else {
		f.Adjusted += v.negative
	}
	for n, line := range v.returned.lines {
		m := Movement{Document: fmt.Sprintf("%s.%d", v.id, n+1), SKU: line.SKU, Units: line.Quantity, Credit: credit, number: line.number}
		if err := stock.CheckOrderID("", m.Document); err != nil {
			p.refuse(line.number, invoiceColumn, v.id, fmt.Sprintf("its documents are named %s and so on, which is longer than %d bytes", quoted(m.Document), stock.MaxOrderIDBytes))
		}
		f.UnitsIn += m.Units
		f.Movements = append(f.Movements, m)
	}
}

// complain tells what a check of package stock found.
func (p *parser) complain(line, column int, value string, err error) {
	reason := err.Error()
	var field *stock.FieldError
	if errors.As(err, &field) {
		reason = field.Remedy
	}
	p.refuse(line, column, value, reason)
}

func (p *parser) refuse(line, column int, value, reason string) {
	p.mistakes.add(Mistake{line, p.named[column], quoted(value), reason})
}

// withEarlier puts the mistakes that were found before in front of the one that ended the reading.
func (p *parser) withEarlier(err error) error {
	var last *MalformedError
	if !errors.As(err, &last) {
		return err
	}
	for _, m := range last.Mistakes {
		p.mistakes.add(m)
	}
	return &p.mistakes
}

func malformed(line int, field, value, reason string) *MalformedError {
	return &MalformedError{Mistakes: []Mistake{{line, field, value, reason}}}
}

// unreadable says where a file stops being CSV.
func unreadable(err error) error {
	var broken *csv.ParseError
	if !errors.As(err, &broken) {
		return err
	}
	switch {
	case errors.Is(broken.Err, csv.ErrFieldCount):
		return malformed(broken.StartLine, "", "", "it has not as many fields as the header: quote a field that holds a comma, and look for a line that was cut off")
	case errors.Is(broken.Err, csv.ErrQuote):
		return malformed(broken.StartLine, "", "", fmt.Sprintf("a quoted field that began here is not closed properly (line %d, byte %d): close it, and double a quote inside it", broken.Line, broken.Column))
	case errors.Is(broken.Err, csv.ErrBareQuote):
		return malformed(broken.Line, "", "", fmt.Sprintf("a quote stands inside a field that is not quoted (byte %d): quote the field and double the quote", broken.Column))
	}
	return malformed(broken.Line, "", "", broken.Err.Error())
}

// lineOf is the line of the file on which a field begins.
func lineOf(table *csv.Reader, column int) int {
	line, _ := table.FieldPos(column)
	return line
}

// quoted is a value as it can stand in a terminal, whatever the file holds.
func quoted(value string) string {
	return stock.BadField("", value, "").Value
}

func needed() string {
	var names []string
	for _, c := range columns {
		names = append(names, c.name)
	}
	return strings.Join(names, ", ")
}
