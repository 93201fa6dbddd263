package api

import (
	"crypto/rand"
	"encoding/hex"
	"time"
)

// NewOrderID makes an order id (or a document id) that nobody made before: 12 hexadecimal digits of the present
// millisecond, so that ids sort by time in reports, and 96 random bits. It never fails.
func NewOrderID() string {
	var raw [18]byte
	now := time.Now().UnixMilli()
	for i := range 6 {
		raw[i] = byte(now >> (8 * (5 - i)))
	}
	_, _ = rand.Read(raw[6:]) // crypto/rand ends the process rather than return an error
	return hex.EncodeToString(raw[:])
}
