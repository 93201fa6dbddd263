package orderfile

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// The fixture has a byte order mark, CRLF, a quoted field over two lines, Latin-1, invoices whose lines are apart,
// duplicate lines, SKUs that differ in case, codes that are no goods, and an invoice of both signs.
func TestOdditiesOfRealFilesAreRead(t *testing.T) {
	t.Parallel()
	got, err := Open(filepath.Join("testdata", "oddities.csv"))
	if err != nil {
		t.Fatal(err)
	}
	want := &File{
		Hash: got.Hash, Invoices: 7, Lines: 13,
		SKUs: []SKU{
			{"85123A", 12, 12}, {"71053", 8, 4}, {"85123a", 2, 2}, {"D", 0, -1},
			{"POST", 3, 3}, {"BANK CHARGES", 1, 1}, {"22139", 4, -7},
		},
		Sales: []Sale{
			{"700001", []Line{{SKU: "85123A", Quantity: 12}, {SKU: "71053", Quantity: 6}}},
			{"700002", []Line{{SKU: "85123a", Quantity: 2}, {SKU: "22139", Quantity: 4}}},
			{"700004", []Line{{SKU: "POST", Quantity: 3}}},
			{"700005", []Line{{SKU: "BANK CHARGES", Quantity: 1}}},
			{"700007", []Line{{SKU: "71053", Quantity: 2}}},
		},
		Movements: []Movement{
			{Document: "C700003.1", SKU: "D", Units: 1, Credit: true},
			{Document: "C700003.2", SKU: "71053", Units: 4, Credit: true},
			{Document: "700006.1", SKU: "22139", Units: 10},
			{Document: "700007.1", SKU: "22139", Units: 1},
		},
		Credits: 1, CreditLines: 3, Adjusted: 2, UnitsOut: 30, UnitsIn: 16,
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Line{}, Movement{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got.Net() != 14 {
		t.Errorf("net %d, want 14", got.Net())
	}
}

func TestEverySKUCanBeSoldInAnyOrderAndEndsAtOpeningMinusNet(t *testing.T) {
	t.Parallel()
	f, err := Open(filepath.Join("testdata", "oddities.csv"))
	if err != nil {
		t.Fatal(err)
	}
	left := map[string]int64{}
	for _, s := range f.SKUs {
		left[s.Text] = s.Opening
	}
	for _, sale := range f.Sales { // the worst order: nothing has come back yet
		for _, l := range sale.Lines {
			if left[l.SKU] -= l.Quantity; left[l.SKU] < 0 {
				t.Errorf("%s is short in sale %s", l.SKU, sale.Order)
			}
		}
	}
	for _, m := range f.Movements {
		left[m.SKU] += m.Units
	}
	for _, s := range f.SKUs {
		if left[s.Text] != s.Available() {
			t.Errorf("%s ends at %d, want %d", s.Text, left[s.Text], s.Available())
		}
	}
}

func TestColumnsAreFoundByName(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"only the needed ones": "InvoiceNo,StockCode,Quantity\n1,a,2\n",
		"any order":            "Quantity,Note,StockCode,InvoiceNo\n2,x,a,1\n",
		"other spellings":      "Invoice,Stock Code,QUANTITY,Customer ID\n1,a,2,\n",
		"byte order mark":      "\ufeff\"InvoiceNo\",StockCode,Quantity\n1,a,2\n",
		"no last line break":   "InvoiceNo,StockCode,Quantity\r\n1,a,2",
		"blank lines, spaces":  "InvoiceNo,StockCode,Quantity\n\n1,a, 2 \n\n",
	} {
		f, err := Read(strings.NewReader(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff([]SKU{{"a", 2, 2}}, f.SKUs); diff != "" || f.Sales[0].Order != "1" {
			t.Errorf("%s: order %q, SKUs (-want +got):\n%s", name, f.Sales[0].Order, diff)
		}
	}
}

func TestMalformedFilesAreRefusedWithTheLine(t *testing.T) {
	t.Parallel()
	const header = "InvoiceNo,StockCode,Description,Quantity\n"
	long := strings.Repeat("x", 65)
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "line 1: the file is empty: begin it with a header that names InvoiceNo, StockCode, Quantity"},
		{"header alone", header, "line 1: there is nothing below the header"},
		{"no quantity", "InvoiceNo,StockCode\n1,a\n", `line 1, Quantity: there is no such column, only "InvoiceNo,StockCode": the header must name InvoiceNo, StockCode, Quantity`},
		{"column twice", "InvoiceNo,Invoice,StockCode,Quantity\n", `line 1, InvoiceNo "Invoice": two columns have this name (1 and 2): leave one`},
		{"UTF-16", "\xff\xfeI\x00n\x00", "line 1: the file is UTF-16: save it as CSV in UTF-8"},
		{"spreadsheet", "PK\x03\x04", "line 1: the file is a spreadsheet or an archive: save it as CSV in UTF-8"},
		{"quantity zero", header + "1,a,d,1\n1,b,d,0\n", `line 3, Quantity "0": a line moves at least one unit: use a number above or below 0`},
		{"quantity text", header + "1,a,d,six\n", `line 2, Quantity "six": use a whole number, negative for what comes back`},
		{"quantity fraction", header + "1,a,d,1.5\n", `line 2, Quantity "1.5": use a whole number, negative for what comes back`},
		{"quantity missing", header + "1,a,d,\n", `line 2, Quantity "": use a whole number, negative for what comes back`},
		{"quantity huge", header + "1,a,d,1000001\n", `line 2, Quantity "1000001": use -999999999 to 1000000`},
		{"quantity beyond 64 bits", header + "1,a,d,99999999999999999999\n", `line 2, Quantity "99999999999999999999": use a whole number, negative for what comes back`},
		{"invoice missing", header + ",a,d,1\n", `line 2, InvoiceNo "": use 1 to 64 characters of A-Z a-z 0-9 . _ : -`},
		{"invoice with a space", header + "1 2,a,d,1\n", `line 2, InvoiceNo "1 2": use 1 to 64 characters of A-Z a-z 0-9 . _ : -`},
		{"invoice too long", header + long + ",a,d,1\n", `line 2, InvoiceNo "` + long + `": use 1 to 64 characters of A-Z a-z 0-9 . _ : -`},
		{"document too long", header + long[1:] + ",a,d,-1\n", `line 2, InvoiceNo "` + long[1:] + `": its documents are named "` + long[1:] + `.1" and so on, which is longer than 64 bytes`},
		{"SKU missing", header + "1,,d,1\n", `line 2, StockCode "": name the SKU`},
		{"SKU too long", header + "1," + long + ",d,1\n", `line 2, StockCode "` + long + `": use at most 64 bytes`},
		{"SKU in Latin-1", header + "1,caf\xe9,d,1\n", `line 2, StockCode "caf\xe9": use valid UTF-8`},
		{"too few fields", header + "1,a,d,1\n2,b\n", "line 3: it has not as many fields as the header: quote a field that holds a comma, and look for a line that was cut off"},
		{"too many fields", header + "1,a,d,e,1\n", "line 2: it has not as many fields as the header: quote a field that holds a comma, and look for a line that was cut off"},
		{"bare quote", header + "1,a,7\" disc,1\n", "line 2: a quote stands inside a field that is not quoted (byte 6): quote the field and double the quote"},
		{"open quote", header + "1,a,d,1\n2,b,\"open,1\n3,c,d,1\n", "line 3: a quoted field that began here is not closed properly (line 4, byte 9): close it, and double a quote inside it"},
		{"after a field of two lines", header + "1,a,\"two\nlines\",1\n2,b,d,x\n", `line 4, Quantity "x": use a whole number, negative for what comes back`},
		{"sum too large", header + "1,a,d,1000000\n2,a,d,1\n1,a,d,1\n", `line 4, Quantity "1": with it invoice 1 sells more than 1000000 units of "a"`},
		{"two mistakes", header + "1,a,d,0\n2,b\n", "line 2, Quantity \"0\": a line moves at least one unit: use a number above or below 0\nline 3: it has not as many fields as the header: quote a field that holds a comma, and look for a line that was cut off"},
	} {
		f, err := Read(strings.NewReader(c.text))
		var malformed *MalformedError
		if f != nil || !errors.As(err, &malformed) {
			t.Errorf("%s: %v, %v; want a MalformedError", c.name, f, err)
			continue
		}
		if diff := cmp.Diff(c.want, err.Error()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestAnOrderBeyondTheLineLimitNamesTheLine(t *testing.T) {
	t.Parallel()
	text := "InvoiceNo,StockCode,Quantity\n" + lines(1500)
	if _, err := Read(strings.NewReader(text)); err != nil {
		t.Fatalf("1500 lines: %v", err)
	}
	_, err := Read(strings.NewReader(text + "1,s0,1\n1,one-more,1\n1,two-more,1\n"))
	want := `line 1503, StockCode "one-more": with it invoice 1 has more than 1500 different SKUs`
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestManyMistakesAreCounted(t *testing.T) {
	t.Parallel()
	_, err := Read(strings.NewReader("InvoiceNo,StockCode,Quantity\n" + strings.Repeat("1,a,0\n", 25)))
	var malformed *MalformedError
	if !errors.As(err, &malformed) || len(malformed.Mistakes) != MaxMistakes || malformed.More != 15 {
		t.Errorf("got %v", err)
	}
}

func TestTheHashIsOfTheBytes(t *testing.T) {
	t.Parallel()
	a, _ := Read(strings.NewReader("InvoiceNo,StockCode,Quantity\n1,a,1\n"))
	b, _ := Read(strings.NewReader("InvoiceNo,StockCode,Quantity\r\n1,a,1\r\n"))
	if a.Hash == b.Hash || len(a.Hash) != 64 {
		t.Errorf("hashes %s and %s", a.Hash, b.Hash)
	}
}

func lines(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "1,s%d,1\n", i)
	}
	return b.String()
}
