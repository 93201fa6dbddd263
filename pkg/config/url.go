package config

import (
	"fmt"
	"net/url"
	"strings"
)

// A URL may hold a password. Every way of printing it leaves the password out; Reveal gives it whole, for the
// driver alone.
type URL string

// String is the URL with its password and every secret parameter replaced by xxxxx. What cannot be read as
// a URL is not shown at all, because nobody can tell where its password stands.
func (u URL) String() string {
	parsed, err := url.Parse(string(u))
	if err != nil || parsed.Scheme == "" || parsed.Opaque != "" {
		return "(not a URL)"
	}
	query := parsed.Query()
	for name := range query {
		if lower := strings.ToLower(name); strings.Contains(lower, "pass") || strings.Contains(lower, "secret") || strings.Contains(lower, "token") {
			query.Set(name, "xxxxx")
			parsed.RawQuery = query.Encode()
		}
	}
	return parsed.Redacted()
}

// GoString keeps %#v as silent as %v.
func (u URL) GoString() string { return fmt.Sprintf("config.URL(%q)", u.String()) }

// MarshalText keeps JSON, and with it logs, as silent as String.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// Reveal is the URL with its secrets. Give it to a driver and to nothing that prints.
func (u URL) Reveal() string { return string(u) }

// check refuses what is not a URL of one of the schemes with a host.
func (u URL) check(field string, schemes ...string) (*url.URL, error) {
	remedy := fmt.Sprintf("write it as %s://[user[:password]@]host[:port]/…", strings.Join(schemes, ":// or "))
	parsed, err := url.Parse(string(u))
	if err != nil {
		return nil, Bound(field, u, remedy) // the parser's error would quote the password
	}
	for _, s := range schemes {
		if parsed.Scheme == s && parsed.Host != "" {
			return parsed, nil
		}
	}
	return nil, Bound(field, u, remedy)
}

// withPassword is the URL with the password of a file put in; a URL that has one already is refused.
func (u URL) withPassword(parsed *url.URL, field, path string) (string, error) {
	if path == "" {
		return string(u), nil
	}
	if _, has := parsed.User.Password(); has {
		return "", Bound(field, path, "the URL holds a password too: give one of the two")
	}
	secret, err := secretFile(field, path)
	if err != nil {
		return "", err
	}
	parsed.User = url.UserPassword(parsed.User.Username(), secret)
	return parsed.String(), nil
}
