package config

import (
	"fmt"

	"github.com/stockpipe/stockpipe/pkg/service"
)

// Listen is one address to serve on. Embed it with a default of the role's own:
// `embed:"" prefix:"ops-" set:"listen=127.0.0.1:8082"`, and let the role's Validate ask Access.Check about it.
type Listen struct {
	Addr string `name:"listen" default:"${listen}" help:"Address to serve on, host:port. One that other machines reach needs --token-file, --tls-cert and --tls-key."`
}

// Validate refuses what is no address, and names the remedy.
func (l Listen) Validate() error {
	if err := service.CheckReach(l.Addr, true, true); err != nil {
		return fmt.Errorf("--…listen: %w", err)
	}
	return nil
}
