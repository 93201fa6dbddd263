package config

import (
	"crypto/rand"
	"fmt"
	"os"
	"regexp"
	"strings"
)

var plainID = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,64}$`)

// CheckID accepts the name of a process as its flag gives it: empty, or 1 to 64 of A-Z a-z 0-9 . _ : - . The error
// names the flag, the value and the remedy.
func CheckID(flag, id string) error {
	if id != "" && !plainID.MatchString(id) {
		return Bound(flag, id, "use 1 to 64 of A-Z a-z 0-9 . _ : -")
	}
	return nil
}

// ProcessID is the given name of a process or, when that is empty, one that no earlier process had: what such a one
// left behind in tables and groups may still be around.
func ProcessID(given string) string {
	if given != "" {
		return given
	}
	host, err := os.Hostname()
	if err != nil {
		host = "host"
	}
	host = strings.Map(func(r rune) rune {
		if plainID.MatchString(string(r)) {
			return r
		}
		return '-'
	}, host)
	return fmt.Sprintf("%.32s-%d-%.8s", host, os.Getpid(), strings.ToLower(rand.Text()))
}
