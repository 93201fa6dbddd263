package config

import (
	"context"
	"errors"
	"fmt"

	"github.com/stockpipe/stockpipe/pkg/access"
	"github.com/stockpipe/stockpipe/pkg/service"
)

// Access says who may come to the listeners of a process, all of them alike. Embed it without a prefix.
type Access struct {
	TokenFile   string `name:"token-file" placeholder:"FILE" help:"File of tokens, one a line: name, scopes (read, order, stock, admin) joined by commas, secret of 32 characters or more; # begins a comment. With it every call to every listener needs a token, but for /healthz and /readyz. Read again when it changes."`
	Certificate string `name:"tls-cert" placeholder:"FILE" help:"PEM certificate of the listeners, with its chain. Read again when it changes."`
	Key         string `name:"tls-key" placeholder:"FILE" help:"PEM key of --tls-cert."`
	UnsafePlain bool   `name:"unsafe-plain-listen" help:"Listen beyond loopback without TLS, for a proxy in front that ends TLS: whoever can read the network between the two reads tokens and orders, and can act with them."`
}

// Validate names the flag, its value and what would be accepted.
func (a Access) Validate() error {
	if (a.Certificate == "") != (a.Key == "") {
		return errors.New("--tls-cert and --tls-key: give both or neither")
	}
	if a.UnsafePlain && a.Certificate != "" {
		return errors.New("--unsafe-plain-listen: there is a certificate, so nothing is plain: leave one of the two out")
	}
	_, err := a.Open(nil)
	return err
}

// Open reads the files. Tell hears why a later change of one could not be taken; nil hears nothing.
func (a Access) Open(tell func(error)) (service.Door, error) {
	door := service.Door{Plain: a.UnsafePlain}
	var err error
	if a.TokenFile != "" {
		if door.Tokens, err = access.OpenTokens(a.TokenFile, tell); err != nil {
			return service.Door{}, fmt.Errorf("--token-file: %w", err)
		}
	}
	if a.Certificate != "" {
		if door.Certificate, err = access.OpenCertificate(a.Certificate, a.Key, tell); err != nil {
			return service.Door{}, fmt.Errorf("--tls-cert, --tls-key: %w", err)
		}
	}
	return door, nil
}

// Check refuses a listener that other machines could reach without a token, or could overhear. Field is its flag.
func (a Access) Check(field string, l Listen) error {
	if err := service.CheckReach(l.Addr, a.TokenFile != "", a.Certificate != "" || a.UnsafePlain); err != nil {
		return fmt.Errorf("--%s: %w", field, err)
	}
	return nil
}

// AskReady asks the process with these settings, at its ops listener, whether it is ready; see service.AskReady.
func (a Access) AskReady(ctx context.Context, ops Listen) error {
	door, err := a.Open(nil)
	if err != nil {
		return err
	}
	return service.AskReady(ctx, ops.Addr, door.Certificate)
}
