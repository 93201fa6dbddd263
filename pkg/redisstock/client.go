package redisstock

import (
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Options of a connection to one Redis.
type Options struct {
	URL      string         // redis:// or rediss://, database 0
	Username string         // replaces the URL's, if set
	Password string         // replaces the URL's, if set
	Name     string         // client name shown by CLIENT LIST
	PoolSize int            // connections, default 16
	Timeout  time.Duration  // of dialling and of one reply, default 1 s
	RootCAs  *x509.CertPool // who may have signed the certificate of a rediss:// server; nil: the system's
}

// connLifetime is how long a connection is used. A name or a proxy may lead to another server by now, and the one
// that was demoted answers reads for ever: it would be taken for the present one until its connections end.
const connLifetime = 2 * time.Second

// Connect makes a client that follows the rules a stock change needs: nothing is ever sent twice by the
// driver (its default re-runs a call after a slow reply or a cut connection, which takes stock twice), the
// caller's deadline ends a read, and a dead address is not dialled over and over. It does not touch the
// network. The error names the part of the URL that is wrong, never a password.
func Connect(o Options) (*redis.Client, error) {
	opt, err := redis.ParseURL(o.URL)
	if err != nil {
		return nil, fmt.Errorf("the Redis URL cannot be read (want redis://host:port/0): %s", redacted(err))
	}
	if opt.DB != 0 {
		return nil, fmt.Errorf("the Redis URL names database %d: use database 0, the only one that a takeover opens", opt.DB)
	}
	if o.Username != "" {
		opt.Username = o.Username
	}
	if o.Password != "" {
		opt.Password = o.Password
	}
	if o.RootCAs != nil {
		if opt.TLSConfig == nil {
			return nil, errors.New("there are certificates to trust and the Redis URL asks for no TLS: begin it with rediss://")
		}
		opt.TLSConfig.RootCAs = o.RootCAs
	}
	quiet.Do(logging.Disable)
	timeout := o.Timeout
	if timeout == 0 {
		timeout = time.Second
	}
	opt.ClientName = o.Name
	opt.PoolSize = o.PoolSize
	if opt.PoolSize == 0 {
		opt.PoolSize = 16
	}
	opt.DialTimeout, opt.ReadTimeout, opt.WriteTimeout, opt.PoolTimeout = timeout, timeout, timeout, timeout
	opt.ConnMaxLifetime, opt.ConnMaxLifetimeJitter = connLifetime, connLifetime/4
	opt.MaxRetries = -1
	opt.DialerRetries = 1
	opt.ContextTimeoutEnabled = true
	opt.DisableIdentity = true
	opt.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return redis.NewClient(opt), nil
}

// quiet stops the driver from writing a line of its own to stderr for every dial that fails: what it has to say
// comes back as errors, and a library does not log.
var quiet sync.Once

// redacted keeps the reason of a URL error without the URL, which may hold a password.
func redacted(err error) string {
	type unwrapper interface{ Unwrap() error }
	for {
		u, ok := err.(unwrapper)
		if !ok || u.Unwrap() == nil {
			return err.Error()
		}
		err = u.Unwrap()
	}
}
