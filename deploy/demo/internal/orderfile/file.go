package orderfile

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
)

// Bounds of a file.
const (
	MaxBytes    = 1 << 30   // of the file
	MaxLines    = 5_000_000 // data lines
	MaxMistakes = 10        // that are told; the rest is counted
)

// A File is everything that an order file asks for.
type File struct {
	Hash     string // SHA-256 of its bytes, in hexadecimal
	Invoices int    // distinct invoice numbers
	Lines    int    // data lines, each duplicate counted

	SKUs      []SKU      // in order of first appearance
	Sales     []Sale     // one for each invoice with positive lines, in order of first appearance
	Movements []Movement // one for each invoice and SKU with negative lines

	Credits     int // invoices with negative lines whose number begins with C
	CreditLines int // their negative lines
	Adjusted    int // negative lines of other invoices

	UnitsOut int64 // sum of the positive quantities
	UnitsIn  int64 // sum of the negative quantities, as a positive number
}

// Net is the sum of all quantities.
func (f *File) Net() int64 { return f.UnitsOut - f.UnitsIn }

// A SKU is one stock code, with what the file does to it.
type SKU struct {
	Text    string
	Opening int64 // all that is sold of it, so that the file can be replayed in any order
	Net     int64 // sum of its quantities
}

// Available is what must be left of a SKU once the file is replayed.
func (s SKU) Available() int64 { return s.Opening - s.Net }

// A Sale is the positive lines of one invoice, summed by SKU.
type Sale struct {
	Order string // the invoice number
	Lines []Line // in order of first appearance
}

// Units is the sum of its lines.
func (s Sale) Units() int64 {
	var sum int64
	for _, l := range s.Lines {
		sum += l.Quantity
	}
	return sum
}

// A Line is one SKU of a sale.
type Line struct {
	SKU      string
	Quantity int64

	number int // line of the file where the SKU first stood
}

// A Movement is the negative lines of one SKU in one invoice, summed: units that come back.
type Movement struct {
	Document string // "<invoice>.<n>"; the same for the same file
	SKU      string
	Units    int64 // above 0
	Credit   bool  // of a credit invoice: goods received; otherwise an adjustment

	number int
}

// Open reads and judges a file. The error of a malformed one is *MalformedError.
func Open(path string) (*File, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the order file: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("open the order file: %w", err)
	}
	switch {
	case info.IsDir():
		return nil, fmt.Errorf("open the order file %s: it is a folder: name a CSV file", path)
	case info.Size() > MaxBytes:
		return nil, fmt.Errorf("open the order file %s: %d bytes, at most %d: cut it into several", path, info.Size(), int64(MaxBytes))
	}
	f, err := Read(file)
	if err != nil {
		return nil, fmt.Errorf("read the order file %s: %w", path, err)
	}
	return f, nil
}

// Read is Open for what is open already; it reads at most MaxBytes.
func Read(r io.Reader) (*File, error) {
	hash := sha256.New()
	limited := &io.LimitedReader{R: r, N: MaxBytes + 1}
	p := newParser()
	if err := p.read(io.TeeReader(limited, hash)); err != nil {
		return nil, err
	}
	if limited.N <= 0 {
		return nil, fmt.Errorf("more than %d bytes: cut it into several", int64(MaxBytes))
	}
	f, err := p.finish()
	if err != nil {
		return nil, err
	}
	f.Hash = hex.EncodeToString(hash.Sum(nil))
	return f, nil
}
