package main

const (
	streams   = "pkg/bus/streambus"
	goStream  = "pkg/bus/streambus/streambus.go"
	goPending = "pkg/bus/streambus/pending.go"
	loops     = "consumer/internal/apply"
	goLoop    = "consumer/internal/apply/apply.go"
	goTrouble = "consumer/internal/apply/trouble.go"
)

var consumerMutants = []mutant{
	{name: "acknowledged before it is committed", harm: "the group forgets entries that the ledger never got",
		file: goPending, old: "return err == nil && (p.Epoch < applied.Epoch ||", new: "return err == nil && (p.Epoch <= applied.Epoch ||",
		pkg: streams, by: []string{"TestNothingIsAcknowledgedBeforeTheLedgerHasIt"}},
	{name: "what another reader left is acknowledged unread", harm: "the group forgets entries that the ledger never got",
		file: goPending, old: "End: s.applied.String()", new: `End: "+"`,
		pkg: streams, by: []string{"TestWhatTheLedgerReachedIsAcknowledgedWhoeverReadIt"}},
	{name: "the group begins at the end", harm: "what was written while no consumer ran is not read",
		file: goStream, old: "at := s.place.String()", new: `at := "$"`,
		pkg: streams, by: []string{"TestTheGroupIsPutAtTheLedgersPosition", "TestConformance"}},
	{name: "a missing log is not told", harm: "a deleted log looks like a quiet shop",
		file: goStream, old: "fmt.Errorf(\"log %s: %w\", s.Log, bus.ErrMissing)", new: "error(nil)",
		pkg: streams, by: []string{"TestConformance"}},
	{name: "the position is not taken from the ledger", harm: "a consumer that was stopped goes on where it was, not where the ledger is",
		file: goLoop, old: "l.at = row.Position()", new: "_ = row",
		pkg: loops, by: []string{"TestALoopReadsFromWhereTheLedgerIs"}},
	{name: "a halt without a fence", harm: "Redis sells on behind an entry that cannot be applied",
		file: goTrouble, old: "if failed := l.Fence(ctx, l.shard, halted.Claim); failed != nil {", new: "if failed := error(nil); failed != nil {",
		pkg: loops, by: []string{"TestPoisonHaltsFencesAndWaitsForTheOperator"}},
	{name: "a shard that is not open is read", harm: "a consumer races with a takeover for the same log",
		file: goLoop, old: "case row.State != ledger.StateOpen:", new: "case row.State == \"\":",
		pkg: loops, by: []string{"TestAShardThatIsNotOpenIsNotRead"}},
}
