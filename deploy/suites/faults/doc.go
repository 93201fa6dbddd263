// Package faults is the fault suite: whatever dies, lies, pauses or comes back does so while real processes sell, and
// afterwards nothing is oversold, nothing is lost in silence, and the audit is clean. Each row names the class of
// drift that it must end in.
//
// Rows run in two sizes: a smoke row of each kind with every run of the tests, and by `make test-faults` all of them
// at full size, as a table of row, class, times run, slowest recovery and verdict.
package faults
