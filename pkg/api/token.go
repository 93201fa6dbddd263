package api

// A Token is the secret of a line in the producer's token file. However it is printed, it does not show; Reveal gives
// it, for the header alone.
type Token string

// String is xxxxx, or nothing for the empty token.
func (t Token) String() string {
	if t == "" {
		return ""
	}
	return "xxxxx"
}

// GoString keeps %#v as silent as %v.
func (t Token) GoString() string { return `api.Token("` + t.String() + `")` }

// MarshalText keeps JSON, and with it logs, as silent as String.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// Reveal is the secret.
func (t Token) Reveal() string { return string(t) }
