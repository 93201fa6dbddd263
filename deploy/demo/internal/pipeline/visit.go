package pipeline

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stockpipe/stockpipe/pkg/redisstock"
)

// forgetPatience bounds the cleaning of servers of the user.
const forgetPatience = 30 * time.Second

// Visit is what a user types to look in: addresses, and commands for redis-cli, psql and curl.
func (p *Pipeline) Visit() []string {
	lines := []string{p.visitRedis(), p.visitPostgres()}
	for _, url := range p.APIs() {
		lines = append(lines, "curl "+url+"/v1/openapi.json")
	}
	for _, r := range p.ofKind(reconciler) {
		lines = append(lines, "curl "+r.place.Ops+"/readyz")
	}
	var metrics []string
	for _, kind := range []string{producer, consumer} {
		for _, r := range p.ofKind(kind) {
			metrics = append(metrics, r.place.Ops+"/metrics")
		}
	}
	return append(lines, "curl "+strings.Join(metrics, " "), "tail -f "+p.logPath("*"))
}

func (p *Pipeline) visitRedis() string {
	if p.config.RedisURL != "" {
		return "redis-cli at your own " + p.redis.Addr() + ", keys " + p.shape.Prefix + ":*"
	}
	_, port, _ := net.SplitHostPort(p.redis.Addr()) // made by us
	return "redis-cli -p " + port
}

// Peek is the command that shows a SKU in Redis.
func (p *Pipeline) Peek(f Figure) string {
	_, port, _ := net.SplitHostPort(p.redis.Addr())
	return fmt.Sprintf("redis-cli -p %s HGET '%s' %d", port, redisstock.NewKeys(p.shape.Prefix, f.Shard).State, f.Number)
}

func (p *Pipeline) visitPostgres() string {
	if p.config.PostgresURL != "" {
		return "psql at your own " + p.postgres.Addr() + ", database " + p.shape.Database
	}
	u, err := url.Parse(p.database)
	if err != nil {
		return "psql" // never: the sandbox made the URL
	}
	return fmt.Sprintf("PGPASSFILE=%s psql -h %s -p %s -U %s %s",
		p.passwordFile(), u.Hostname(), u.Port(), u.User.Username(), strings.TrimPrefix(u.Path, "/"))
}

func (p *Pipeline) passwordFile() string { return filepath.Join(p.Dir(), "pgpass") }

// writePassword lets psql in without a password on a screen, in a log or on a command line.
func (p *Pipeline) writePassword() error {
	if p.config.PostgresURL != "" {
		return nil
	}
	u, err := url.Parse(p.database)
	if err != nil {
		return fmt.Errorf("write the password file for psql: the URL of the private Postgres is unreadable")
	}
	secret, _ := u.User.Password()
	escape := strings.NewReplacer(`\`, `\\`, `:`, `\:`)
	line := fmt.Sprintf("%s:%s:*:%s:%s\n", u.Hostname(), u.Port(), escape.Replace(u.User.Username()), escape.Replace(secret))
	if err := os.WriteFile(p.passwordFile(), []byte(line), 0o600); err != nil {
		return fmt.Errorf("write the password file for psql: %w", err)
	}
	return nil
}

// forget removes what the demo left on servers of the user; private ones vanish with their folder.
func (p *Pipeline) forget() error {
	ctx, cancel := context.WithTimeout(context.Background(), forgetPatience)
	defer cancel()
	if p.config.RedisURL != "" && p.rdb != nil {
		keys := p.rdb.Scan(ctx, 0, p.shape.Prefix+":*", 1000).Iterator()
		for keys.Next(ctx) {
			if err := p.rdb.Del(ctx, keys.Val()).Err(); err != nil {
				return fmt.Errorf("remove the keys %s:* from Redis: %w", p.shape.Prefix, err)
			}
		}
		if err := keys.Err(); err != nil {
			return fmt.Errorf("remove the keys %s:* from Redis: %w", p.shape.Prefix, err)
		}
	}
	if p.config.PostgresURL != "" && p.database != "" {
		if err := p.postgres.DropDatabase(ctx, p.shape.Database); err != nil {
			return fmt.Errorf("remove the database %s: %w", p.shape.Database, err)
		}
	}
	return nil
}
