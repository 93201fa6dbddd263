package shoptest

import (
	"bytes"
	"sync/atomic"

	"github.com/stockpipe/stockpipe/pkg/sandbox/faultproxy"
)

// IsCommit matches the statement that ends a transaction, and not those that only speak of one.
func IsCommit(request []byte) bool {
	// A simple query: a letter, four bytes of length, the text, a zero.
	text := []byte("commit\x00")
	return len(request) == 5+len(text) && request[0] == 'Q' && bytes.EqualFold(request[5:], text)
}

// CommitAfter matches the first commit that follows a statement with this text. Prepared statements show their text
// once on a connection, so the roles are to be fresh; a commit of another connection in between would match as well.
func CommitAfter(text string) faultproxy.Match {
	statement := faultproxy.Contains(text)
	var seen atomic.Bool
	return func(request []byte) bool {
		if statement(request) {
			seen.Store(true)
		}
		return seen.Load() && IsCommit(request)
	}
}
