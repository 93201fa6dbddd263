package tidy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestTheTopLevelHoldsOnlyWhatIsPlanned(t *testing.T) {
	t.Parallel()
	report(t, strangers(sources(t)))
}

func TestImportsPointTowardsTheNouns(t *testing.T) {
	t.Parallel()
	packages, edges := graph(goFiles(t))
	if len(edges) == 0 {
		t.Fatal("no import was found: the rules would hold for nothing")
	}
	for _, b := range breaches(packages, edges) {
		t.Error(b.text)
	}
}

func TestNamesSayWhatThingsAre(t *testing.T) {
	t.Parallel()
	report(t, emptyNames(goFiles(t)))
}

func TestFilesFitAReader(t *testing.T) {
	t.Parallel()
	report(t, tooLong(sources(t)))
}

func TestNothingSleepsOutsideTests(t *testing.T) {
	t.Parallel()
	report(t, sleepers(goFiles(t)))
}

func TestNothingIsLeftForLater(t *testing.T) {
	t.Parallel()
	report(t, leftovers(sources(t)))
}

func TestNoFileNamesTheMachineItWasWrittenOn(t *testing.T) {
	t.Parallel()
	report(t, machinePaths(sources(t)))
}

func TestEveryPackageIntroducesItself(t *testing.T) {
	t.Parallel()
	report(t, silentPackages(goFiles(t)))
}

func report(t *testing.T, complaints []string) {
	t.Helper()
	for _, c := range complaints {
		t.Error(c)
	}
}

func strangers(files []source) []string {
	var found []string
	for _, f := range files {
		name := top(f.path)
		c := fmt.Sprintf("%s does not belong at the top level: move it into a room, or plan for it in `topLevel`", name)
		if !strings.HasPrefix(name, ".") && !slices.Contains(topLevel, name) && !slices.Contains(found, c) {
			found = append(found, c)
		}
	}
	return found
}
