package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A mutant is the product with one line broken.
type mutant struct {
	part string // of the product: library, batcher, order, ledger, audit, takeover, consumer, reconciler
	name string
	harm string // what would happen to a shop, in one sentence
	file string // from the module's root
	old  string // stands exactly once in the file
	new  string
	pkg  string   // whose tests have to notice, from the module's root
	by   []string // and which: the names of test functions, of which one is enough
	hang bool     // a test that does not end in time has noticed, too
}

func (m mutant) title() string { return m.part + ": " + m.name }

// broken is the text of the file with the mutation in it. A mutant that does not apply is an error and not a
// survivor: the code has moved on, and nobody knows whether the test still guards it.
func (m mutant) broken(root string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return "", fmt.Errorf("read the file to break: %w", err)
	}
	if n := strings.Count(string(text), m.old); n != 1 {
		return "", fmt.Errorf("%s has the text to break %d times, not once: bring the table up to date", m.file, n)
	}
	return strings.Replace(string(text), m.old, m.new, 1), nil
}

// table is every mutant, part by part.
func table() []mutant {
	return slices.Concat(
		inPart("library", libraryMutants), inPart("batcher", batcherMutants), inPart("order", orderMutants),
		inPart("ledger", ledgerMutants), inPart("audit", auditMutants), inPart("takeover", takeoverMutants),
		inPart("consumer", consumerMutants), inPart("reconciler", reconcilerMutants))
}

func inPart(part string, mutants []mutant) []mutant {
	out := slices.Clone(mutants)
	for i := range out {
		out[i].part = part
	}
	return out
}
