package main

const (
	reconcilers   = "reconciler/reconcilerapp"
	goRenewal     = "reconciler/internal/repair/document.go"
	goRepairTurn  = "reconciler/internal/repair/turn.go"
	goRepairHolds = "reconciler/internal/repair/expiry.go"
)

var reconcilerMutants = []mutant{
	{name: "a document renewed without a look at the log", harm: "a movement that is in the log and not yet in Postgres is moved again",
		file: goRenewal, old: "if err != nil || there {", new: "if err != nil || there && false {",
		pkg: reconcilers, by: []string{"TestADocumentInTheLogIsNotGivenANewDeadline"}},
	{name: "a pass without the turn repairs", harm: "two reconcilers take over one shard against each other",
		file: goRepairTurn, old: "if !has {", new: "if !has && false {",
		pkg: reconcilers, by: []string{"TestAPassWithoutTheTurnOnlyLooks"}},
	{name: "a hold that Redis finds not due counts as ended", harm: "holds that a clock delays are called ended, and nobody looks",
		file: goRepairHolds, old: "case code == stock.NotDue:\n\t\te.NotDue++", new: "case code == stock.NotDue:\n\t\te.Expired++",
		pkg: repairs, by: []string{"TestAnAnswerToAnExpiryCountsAsWhatItIs"}},
}
