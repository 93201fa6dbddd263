package access

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/stockpipe/stockpipe/consumer/consumerapp"
	"github.com/stockpipe/stockpipe/deploy/suites/shoptest"
	"github.com/stockpipe/stockpipe/pkg/access"
	"github.com/stockpipe/stockpipe/pkg/config"
	"github.com/stockpipe/stockpipe/producer/producerapp"
	"github.com/stockpipe/stockpipe/reconciler/reconcilerapp"
)

const root = "../../.."

var (
	helpFlag = regexp.MustCompile(`(?m)^\s+(?:-\w, )?--([a-z-]+)`)
	rowFlag  = regexp.MustCompile("`--([a-z-]+)`")
	rowScope = regexp.MustCompile("(?m)^\\| `([a-z]+)` \\|")
)

// flagsOf are those that the help of each role lists.
func flagsOf(t *testing.T) map[string][]string {
	t.Helper()
	flags := map[string][]string{}
	for name, settings := range map[string]any{
		shoptest.Producer: &producerapp.Config{}, shoptest.Consumer: &consumerapp.Config{}, shoptest.Reconciler: &reconcilerapp.Config{},
	} {
		var help strings.Builder
		if _, err := config.ParseArgs(name, "", settings, []string{"--help"}, &help); !errors.Is(err, config.ErrHelp) {
			t.Fatal(err)
		}
		for _, found := range helpFlag.FindAllStringSubmatch(help.String(), -1) {
			flags[name] = append(flags[name], found[1])
		}
	}
	return flags
}

// accessFlags are the flags that the tables are about.
func isAccessFlag(name string) bool {
	return slices.Contains([]string{"token-file", "tls-cert", "tls-key", "unsafe-plain-listen", "postgres-mode"}, name) ||
		strings.HasSuffix(name, "-ca-file") || strings.HasSuffix(name, "-password-file")
}

// The tables of the README's section name every flag and scope of access, and no other; every role has the flags.
func TestTheReadmeTablesOfAccessAreTrue(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(root + "/README.md")
	shoptest.Need(t, err)
	_, section, ok := strings.Cut(string(text), "\n## Access\n")
	section, _, ends := strings.Cut(section, "\n## ")
	if !ok || !ends {
		t.Fatal("README.md has no section Access")
	}
	var named []string
	for line := range strings.Lines(section) {
		if strings.HasPrefix(line, "| `--") {
			first, _, _ := strings.Cut(strings.TrimPrefix(line, "|"), "|")
			for _, found := range rowFlag.FindAllStringSubmatch(first, -1) {
				named = append(named, found[1])
			}
		}
	}
	slices.Sort(named)
	for kind, flags := range flagsOf(t) {
		var has []string
		for _, flag := range flags {
			if isAccessFlag(flag) {
				has = append(has, flag)
			}
		}
		slices.Sort(has)
		if diff := cmp.Diff(slices.Compact(has), named); diff != "" {
			t.Errorf("%s, and what README.md names:\n%s", kind, diff)
		}
	}
	var scopes []access.Scope
	for _, found := range rowScope.FindAllStringSubmatch(section, -1) {
		scopes = append(scopes, access.Scope(found[1]))
	}
	if diff := cmp.Diff(access.Scopes, scopes); diff != "" {
		t.Errorf("scopes:\n%s", diff)
	}
}

// Every flag that the pages name is one that a role has, or of another program.
func TestThePagesNameOnlyFlagsThatThereAre(t *testing.T) {
	t.Parallel()
	flags := flagsOf(t)
	known := slices.Concat(flags[shoptest.Producer], flags[shoptest.Consumer], flags[shoptest.Reconciler])
	// Commands of the reconciler have flags of their own, which its own help does not list.
	others := []string{"shard", "all", "adopt", "library", "every-order", "at", "limit", "accept-loss", "older-than", "shards", "detach", "build", "help", "unsafe", "aclfile"}
	for _, page := range []string{"README.md", "deploy/docs/runbook/README.md", "deploy/docs/decisions/0005-access.md"} {
		text, err := os.ReadFile(root + "/" + page)
		shoptest.Need(t, err)
		for _, found := range regexp.MustCompile(`(?:^|[\s`+"`"+`(])--([a-z]+(?:-[a-z]+)*)`).FindAllStringSubmatch(string(text), -1) {
			if !slices.Contains(known, found[1]) && !slices.Contains(others, found[1]) {
				t.Errorf("%s names --%s, which no role has", page, found[1])
			}
		}
	}
}
