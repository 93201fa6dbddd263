package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
)

// ErrNoBinary is wrapped by the error for a server program that is not
// installed; the error's text names the command that installs it.
var ErrNoBinary = errors.New("not installed")

// serverNames are the programs whose processes count as ours when they work in
// one of our folders.
var serverNames = map[string]bool{"redis-server": true, "valkey-server": true, "postgres": true, "initdb": true, "pg_basebackup": true, "pgbouncer": true}

var postgresFolders = []string{
	"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/pgsql*/bin",
	"/opt/homebrew/opt/postgresql@*/bin", "/usr/local/opt/postgresql@*/bin",
}

var redisFolders = []string{"/usr/local/bin", "/usr/bin", "/opt/homebrew/bin", "/usr/sbin"}

func findRedis(wanted string) (string, error) {
	if wanted != "" {
		path, err := exec.LookPath(wanted)
		if err != nil {
			return "", fmt.Errorf("the named redis-server: %w", err)
		}
		return path, nil
	}
	names := []string{"redis-server", "valkey-server"}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	for _, folder := range redisFolders {
		for _, name := range names {
			if path := filepath.Join(folder, name); executable(path) {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("redis-server (or valkey-server) is %w: %s, or name a running one by STOCKPIPE_REDIS_URL",
		ErrNoBinary, remedy("redis-server", "redis"))
}

// findPostgres is the folder that has both initdb and postgres.
func findPostgres(wanted string) (string, error) {
	if wanted != "" {
		if !hasPostgres(wanted) {
			return "", fmt.Errorf("the named folder %s does not hold both initdb and postgres", wanted)
		}
		return wanted, nil
	}
	if path, err := exec.LookPath("initdb"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil && hasPostgres(filepath.Dir(real)) {
			return filepath.Dir(real), nil
		}
		if hasPostgres(filepath.Dir(path)) {
			return filepath.Dir(path), nil
		}
	}
	var found []string
	for _, pattern := range postgresFolders {
		matches, _ := filepath.Glob(pattern)
		found = append(found, matches...)
	}
	slices.SortStableFunc(found, func(a, b string) int { return cmp.Compare(versionIn(b), versionIn(a)) })
	for _, folder := range found {
		if hasPostgres(folder) {
			return folder, nil
		}
	}
	return "", fmt.Errorf("Postgres (initdb and postgres) is %w: %s, or name a running one by STOCKPIPE_POSTGRES_URL",
		ErrNoBinary, remedy("postgresql", "postgresql"))
}

func hasPostgres(folder string) bool {
	return executable(filepath.Join(folder, "initdb")) && executable(filepath.Join(folder, "postgres"))
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

var digits = regexp.MustCompile(`\d+(\.\d+)?`)

// versionIn is the last number in a folder's path, as in /usr/lib/postgresql/15/bin.
func versionIn(path string) float64 {
	numbers := digits.FindAllString(path, -1)
	if len(numbers) == 0 {
		return 0
	}
	version, _ := strconv.ParseFloat(numbers[len(numbers)-1], 64)
	return version
}

// remedy is the command that installs a package here.
func remedy(debian, brew string) string {
	if runtime.GOOS == "darwin" {
		return "brew install " + brew
	}
	if os.Geteuid() == 0 {
		return "apt-get install " + debian
	}
	return "sudo apt-get install " + debian
}
