package access

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/stockpipe/stockpipe/pkg/api"
)

// Bounds of a token file.
const (
	MinSecret = 32        // characters of a secret
	maxSecret = 512       // bytes
	maxTokens = 1000      // each is compared with what a caller sends
	maxFile   = 512 << 10 // bytes
)

// A token is one line of a file. Of its secret only the digest is kept.
type token struct {
	name   string
	scopes []Scope
	digest [sha256.Size]byte
}

var (
	plainName   = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)
	plainSecret = regexp.MustCompile(`^[A-Za-z0-9._~+/=-]+$`) // what a Bearer header may carry (RFC 6750)
)

// parseTokens reads lines of `name scope[,scope…] secret`; empty lines and those that begin with # are skipped. The
// error names the line and the remedy, and never shows a secret.
func parseTokens(text []byte) ([]token, error) {
	var tokens []token
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(make([]byte, 0, 4096), maxFile)
	for n := 1; lines.Scan(); n++ {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		t, err := parseToken(fields)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		for _, other := range tokens {
			switch {
			case other.name == t.name:
				return nil, fmt.Errorf("line %d: the name %s stands on an earlier line, too: names tell tokens apart, choose another", n, t.name)
			case other.digest == t.digest:
				return nil, fmt.Errorf("line %d: %s has the secret of %s: make one of its own", n, t.name, other.name)
			}
		}
		if tokens = append(tokens, t); len(tokens) > maxTokens {
			return nil, fmt.Errorf("line %d: a file has %d tokens at most", n, maxTokens)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the lines: %w", err)
	}
	if len(tokens) == 0 {
		return nil, errors.New("it has no token, so nobody could come in: add a line `name scope,scope secret`")
	}
	return tokens, nil
}

func parseToken(fields []string) (token, error) {
	if len(fields) != 3 {
		// The fields are not shown: one of them is a secret.
		return token{}, fmt.Errorf("it has %d words: write `name scope,scope secret`", len(fields))
	}
	name, secret := fields[0], fields[2]
	if !plainName.MatchString(name) {
		return token{}, errors.New("the name (first word) is not acceptable: use 1 to 64 of A-Z a-z 0-9 . _ -")
	}
	scopes, err := parseScopes(fields[1])
	if err != nil {
		return token{}, fmt.Errorf("token %s: %w", name, err)
	}
	switch {
	case len(secret) < MinSecret:
		return token{}, fmt.Errorf("token %s: its secret has %d characters: use at least %d, for example from `openssl rand -hex 32`", name, len(secret), MinSecret)
	case len(secret) > maxSecret || !plainSecret.MatchString(secret):
		return token{}, fmt.Errorf("token %s: its secret cannot travel in a header: use %d to %d of A-Z a-z 0-9 . _ ~ + / = -, for example from `openssl rand -hex 32`", name, MinSecret, maxSecret)
	}
	return token{name: name, scopes: scopes, digest: sha256.Sum256([]byte(secret))}, nil
}

// Tokens are those of a file, read again within a second of a request after it changed. Safe for concurrent use; a
// nil *Tokens lets everybody in.
type Tokens struct {
	file *watched[[]token]
}

// OpenTokens reads a file. Tell hears why a change of the file could not be taken, once for each change; the tokens
// from before it stay good then. Tell may be nil.
func OpenTokens(path string, tell func(error)) (*Tokens, error) {
	file, err := watch("token file", []string{path}, maxFile, tell, func(texts [][]byte) ([]token, error) {
		return parseTokens(texts[0])
	})
	if err != nil {
		return nil, err
	}
	return &Tokens{file: file}, nil
}

// A Refusal is why somebody is not let in: a problem of 401 (nobody knows who it is) or 403 (its token lacks the
// scope), and the header WWW-Authenticate that goes with it (RFC 6750).
type Refusal struct {
	*api.Problem
	Challenge string
}

const challenge = `Bearer realm="stockpipe"`

// Allow is nil when the request carries a token with the scope.
func (t *Tokens) Allow(r *http.Request, scope Scope) *Refusal {
	if t == nil || scope == Open {
		return nil
	}
	header := r.Header.Values("Authorization")
	if len(header) == 0 {
		return unknown(scope, challenge, "no token came with the request: send the header Authorization: Bearer <secret>, with the secret of a line in the token file")
	}
	const invalid = challenge + `, error="invalid_token"`
	kind, secret, _ := strings.Cut(header[0], " ")
	if len(header) > 1 || !strings.EqualFold(kind, "Bearer") || len(secret) > maxSecret {
		return unknown(scope, invalid, "the header Authorization is not understood: send one, with Bearer and the secret")
	}
	known := t.find(strings.TrimSpace(secret))
	switch {
	case known == nil:
		return unknown(scope, invalid, "no token has this secret: look whether it was withdrawn, or replaced")
	case !allows(known.scopes, scope):
		return &Refusal{&api.Problem{
			Code: api.CodeForbidden, Title: "Token lacks a scope", Status: http.StatusForbidden, Scope: string(scope),
			Detail: "the token " + known.name + " lacks the scope " + string(scope) + ": use another, or add the scope to its line in the token file",
		}, challenge + `, error="insufficient_scope", scope="` + string(scope) + `"`}
	}
	return nil
}

func unknown(scope Scope, challenge, detail string) *Refusal {
	return &Refusal{&api.Problem{
		Code: api.CodeUnauthorized, Title: "No valid token", Status: http.StatusUnauthorized, Scope: string(scope), Detail: detail,
	}, challenge}
}

// find compares the digest with that of every token, and does not stop at the one: how long it takes tells nothing.
func (t *Tokens) find(secret string) *token {
	digest := sha256.Sum256([]byte(secret))
	tokens := t.file.get()
	found := -1
	for i := range tokens {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(digest[:], tokens[i].digest[:]), i, found)
	}
	if found < 0 {
		return nil
	}
	return &tokens[found]
}
