package server

import (
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/stockpipe/stockpipe/pkg/access"
	"github.com/stockpipe/stockpipe/pkg/api"
)

// admit asks for the token of a request, before its body is read. It is nil when the caller may use the route.
func (s *Server) admit(w http.ResponseWriter, r *http.Request, rt *route) *api.Problem {
	refused := s.config.Tokens.Allow(r, rt.scope)
	if refused == nil {
		return nil
	}
	w.Header().Set("WWW-Authenticate", refused.Challenge)
	return refused.Problem
}

// bearer is the name of the one way to say who calls, in the description.
const bearer = "token"

// securitySchemes describe it.
func securitySchemes() map[string]*huma.SecurityScheme {
	return map[string]*huma.SecurityScheme{bearer: {
		Type: "http", Scheme: "bearer",
		Description: "The secret of a line in the producer's token file, asked for when it runs with --token-file. A token has scopes: read (look), order (reserve, confirm, release), stock (SKUs and stock documents), admin (everything).",
	}}
}

// security is what a route asks for: a token with its scope.
func security(rt *route) []map[string][]string {
	if rt.scope == access.Open {
		return nil
	}
	return []map[string][]string{{bearer: {string(rt.scope)}}}
}
