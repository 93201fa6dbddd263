// Package access is who may come to a listener: tokens with scopes from a file, and the certificate that a listener
// shows. Both files are read again when they change, without a restart.
//
// It says yes or no and knows no routes: which scope a route asks for stands beside the route. Who may reach Redis
// and Postgres is decided there, by the ACL and the roles in deploy/access.
package access

import (
	"fmt"
	"slices"
	"strings"
)

// A Scope is what a token is for.
type Scope string

// The scopes stand side by side: order without read may reserve and not look. Admin is for operators and has all of
// the others.
const (
	Open  Scope = ""      // nobody is asked
	Read  Scope = "read"  // look: every GET, and metrics
	Order Scope = "order" // reserve, confirm, release
	Stock Scope = "stock" // make SKUs, write stock documents
	Admin Scope = "admin" // everything
)

// Scopes are all that a token may have.
var Scopes = []Scope{Read, Order, Stock, Admin}

// parseScopes reads "read,order".
func parseScopes(text string) ([]Scope, error) {
	var scopes []Scope
	for word := range strings.SplitSeq(text, ",") {
		s := Scope(word)
		if !slices.Contains(Scopes, s) {
			return nil, fmt.Errorf("%.20q is no scope: use read, order, stock or admin, several joined by commas", word)
		}
		if slices.Contains(scopes, s) {
			return nil, fmt.Errorf("the scope %s stands twice: leave one out", s)
		}
		scopes = append(scopes, s)
	}
	return scopes, nil
}

func allows(have []Scope, want Scope) bool {
	return slices.Contains(have, want) || slices.Contains(have, Admin)
}
