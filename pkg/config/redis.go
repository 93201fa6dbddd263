package config

import (
	"crypto/x509"
	"fmt"
	"io"
	"os"
	"regexp"
)

// Redis says where stock is decided. Embed it with `embed:"" prefix:"redis-"`.
type Redis struct {
	URL          URL    `name:"url" default:"redis://127.0.0.1:6379/0" help:"Redis, rediss:// for TLS. Put a password in the file below or in the environment, not on the command line."`
	PasswordFile string `name:"password-file" placeholder:"FILE" help:"File that holds the password of Redis."`
	CAFile       string `name:"ca-file" placeholder:"FILE" help:"PEM certificates of those who may have signed Redis' own, with rediss://; without it the system's. Read at the start."`
	Prefix       string `name:"prefix" default:"sp" help:"First part of every key, 1 to 64 of A-Z a-z 0-9 . _ - ; all processes of one shop use the same."`
}

var plainPrefix = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// Validate names the flag, its value and what would be accepted.
func (r Redis) Validate() error {
	if !plainPrefix.MatchString(r.Prefix) {
		return Bound("redis-prefix", r.Prefix, "use 1 to 64 of A-Z a-z 0-9 . _ -")
	}
	if _, err := r.Connection(); err != nil {
		return err
	}
	_, err := r.Roots()
	return err
}

// Roots are those of --redis-ca-file; nil means the system's.
func (r Redis) Roots() (*x509.CertPool, error) {
	const most = 1 << 20 // bytes: a bundle of all public roots has a quarter of it
	if r.CAFile == "" {
		return nil, nil
	}
	if parsed, err := r.URL.check("redis-url", "rediss"); err != nil || parsed.Scheme != "rediss" {
		return nil, Bound("redis-ca-file", r.CAFile, "it is for TLS: begin --redis-url with rediss://, or leave the file out")
	}
	file, err := os.Open(r.CAFile)
	if err != nil {
		return nil, fmt.Errorf("--redis-ca-file: %w: name a file that this user may read", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, most))
	if err != nil {
		return nil, fmt.Errorf("--redis-ca-file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, Bound("redis-ca-file", r.CAFile, "the file must hold PEM certificates")
	}
	return pool, nil
}

// Connection is the URL with the password of the file: a secret, for the driver alone.
func (r Redis) Connection() (string, error) {
	parsed, err := r.URL.check("redis-url", "redis", "rediss")
	if err != nil {
		return "", err
	}
	// SWAPDB and clients in other databases are ways to lose the fence, so stock lives in database 0 only.
	if parsed.Path != "" && parsed.Path != "/" && parsed.Path != "/0" || parsed.Query().Has("db") {
		return "", Bound("redis-url", r.URL, "stock lives in database 0: end it with /0")
	}
	return r.URL.withPassword(parsed, "redis-password-file", r.PasswordFile)
}
