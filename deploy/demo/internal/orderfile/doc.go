// Package orderfile reads an order file with the columns of Online Retail (InvoiceNo, StockCode, Quantity and
// whatever else) and says what a replay of it has to send: openings, sales, credits and adjustments. The whole file
// is read and judged before anything is returned, so a malformed one is never half replayed.
//
// The file books units that leave as positive and units that come back as negative; every line moves the stock of
// its SKU by minus its quantity. That is why a SKU must end at its opening minus its net quantity.
package orderfile
