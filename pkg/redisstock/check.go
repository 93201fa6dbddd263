package redisstock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// A SettingError is a setting of the Redis server that makes promises impossible, with the present value and
// the command that mends it.
type SettingError struct {
	Setting string
	Value   string
	Want    string
	Remedy  string
}

func (e *SettingError) Error() string {
	return fmt.Sprintf("Redis setting %s is %q, must be %s: %s", e.Setting, e.Value, e.Want, e.Remedy)
}

// Unsafe names checks that an operator chose to do without.
type Unsafe struct {
	Eviction  bool // a policy that evicts: stock and orders may vanish one by one
	Memory    bool // no maxmemory: the kernel ends Redis in place of a refusal
	AOF       bool // no append-only file: a restart comes back empty, and every restart costs the unpersisted tail
	Replicas  bool // replicas without min-replicas-to-write
	OldServer bool // a version below 7
}

// CheckServer looks at everything that the promises need of a Redis server: version 7 or Valkey, a master,
// no eviction, a memory bound, the append-only file, and min-replicas-to-write where replicas are attached.
// All failures come joined, each a *SettingError; other errors are Redis' own.
func CheckServer(ctx context.Context, rdb redis.Cmdable, unsafe Unsafe) error {
	text, err := rdb.Info(ctx, "server", "replication", "memory", "persistence").Result()
	if err != nil {
		return fmt.Errorf("ask Redis for its settings: %w", err)
	}
	info := parseInfo(text)
	var problems []error
	report := func(skip bool, setting, value, want, remedy string) {
		if !skip {
			problems = append(problems, &SettingError{Setting: setting, Value: value, Want: want, Remedy: remedy})
		}
	}
	version := info["redis_version"]
	if major, err := strconv.Atoi(strings.SplitN(version, ".", 2)[0]); info["server_name"] != "valkey" && (err != nil || major < 7) {
		report(unsafe.OldServer, "redis_version", version, "7 or later (or Valkey)", "upgrade the server")
	}
	if info["role"] != "master" {
		report(false, "role", info["role"], "master", "give the address of the master, or REPLICAOF NO ONE")
	}
	if policy := info["maxmemory_policy"]; policy != "noeviction" {
		report(unsafe.Eviction, "maxmemory-policy", policy, "noeviction", "redis-cli CONFIG SET maxmemory-policy noeviction")
	}
	if info["maxmemory"] == "0" {
		report(unsafe.Memory, "maxmemory", "0", "set", "redis-cli CONFIG SET maxmemory 1gb (about half of the machine's memory)")
	}
	if info["aof_enabled"] != "1" {
		report(unsafe.AOF, "appendonly", "no", "yes", "redis-cli CONFIG SET appendonly yes")
	}
	// Redis counts good replicas only while min-replicas-to-write is in force: so nobody needs a right to CONFIG,
	// which would show passwords.
	_, inForce := info["min_slaves_good_slaves"]
	if replicas := info["connected_slaves"]; replicas != "0" && !inForce {
		report(unsafe.Replicas, "min-replicas-to-write", "0 with "+replicas+" replicas attached", "at least 1",
			"redis-cli CONFIG SET min-replicas-to-write 1, so that an isolated master stops selling")
	}
	return errors.Join(problems...)
}

func parseInfo(text string) map[string]string {
	out := map[string]string{}
	for line := range strings.SplitSeq(text, "\n") {
		if name, value, ok := strings.Cut(strings.TrimRight(line, "\r"), ":"); ok {
			out[name] = value
		}
	}
	return out
}
