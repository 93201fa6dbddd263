// Package config reads the settings of a process: flags, then STOCKPIPE_… variables, then defaults that work
// against the local stack. What --help prints is the reference. Secrets come from files or the environment
// and are never printed; the settings that several roles share are structs to embed.
//
// Each setting is a field with a sentence (kong's help tag); Validate of a struct names the flag, the value and
// what would be accepted.
package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/alecthomas/kong"
)

// UsageExit is the exit code after a setting that cannot be used. It is none of those that roles give a meaning.
const UsageExit = 64

// ErrHelp is the answer to --help: it was printed, and there is nothing more to do.
var ErrHelp = errors.New("help was printed")

// A FieldError is a setting that cannot be used.
type FieldError struct {
	Field  string // the flag, without dashes
	Value  string // printable, never a secret
	Remedy string // what would be accepted
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("--%s: %s is not acceptable: %s", e.Field, e.Value, e.Remedy)
}

// Bound is a *FieldError; the value is printed as %q of its text.
func Bound(field string, value any, remedy string) error {
	return &FieldError{Field: field, Value: fmt.Sprintf("%q", fmt.Sprint(value)), Remedy: remedy}
}

// Parse fills the struct that cli points to from the command line and the environment of this process, and
// returns the chosen command ("" when there are none). After --help it exits with 0; after a mistake it says
// what to do on stderr and exits with UsageExit.
func Parse(name, description string, cli any) (command string) {
	command, err := ParseArgs(name, description, cli, os.Args[1:], os.Stdout)
	switch {
	case errors.Is(err, ErrHelp):
		os.Exit(0)
	case err != nil:
		fmt.Fprintf(os.Stderr, "%s: %v\n%s --help lists every setting.\n", name, err, name)
		os.Exit(UsageExit)
	}
	return command
}

// ParseArgs is Parse with the arguments given, and without an exit: help goes to out and comes back as ErrHelp.
// Every other error is about a setting.
func ParseArgs(name, description string, cli any, args []string, out io.Writer) (command string, err error) {
	printed := false
	parser, err := kong.New(cli,
		kong.Name(name),
		kong.Description(description+"\n\nEvery flag can be given as the environment variable that stands behind it; a flag wins."),
		kong.Writers(out, io.Discard),
		kong.DefaultEnvars("STOCKPIPE"),
		kong.ConfigureHelp(kong.HelpOptions{Compact: false, Summary: false, WrapUpperBound: 110}),
		kong.Exit(func(int) { printed = true }),
	)
	if err != nil {
		return "", fmt.Errorf("the settings of %s are declared wrongly: %w", name, err)
	}
	parsed, err := parser.Parse(withGoHelp(args))
	switch {
	case printed:
		return "", ErrHelp
	case err != nil:
		return "", err
	}
	return parsed.Command(), nil
}

// withGoHelp lets -help mean --help, as Go programs do; kong would read it as four short flags.
func withGoHelp(args []string) []string {
	out := make([]string, len(args))
	for i, a := range args {
		if a == "-help" {
			a = "--help"
		}
		out[i] = a
	}
	return out
}

// secretFile reads a secret that stands alone in a file; a line break at its end is not part of it.
func secretFile(field, path string) (string, error) {
	const most = 4096 // bytes: a secret, not a file of something else
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("--%s: %w: name a file that this user may read", field, err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, most+1))
	if err != nil {
		return "", fmt.Errorf("--%s: %w", field, err)
	}
	secret := strings.TrimRight(string(text), "\r\n")
	if secret == "" || len(text) > most || strings.ContainsAny(secret, "\r\n\x00") {
		return "", Bound(field, path, "the file must hold the password alone, on one line of at most 4096 bytes")
	}
	return secret, nil
}
