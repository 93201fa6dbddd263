package main

// Files of the Desk, which lets many callers share one call.
const (
	goDesk    = "pkg/redisstock/desk.go"
	goLane    = "pkg/redisstock/lane.go"
	goReply   = "pkg/redisstock/reply.go"
	goClass   = "pkg/redisstock/class.go"
	goConnect = "pkg/redisstock/client.go"
)

var batcherMutants = []mutant{
	{name: "seq compared across epochs", harm: "after every takeover a shop that had sold stays closed, its seq being higher than the new one",
		file: goDesk, old: "seen != nil && seen.Epoch == e.Epoch &&", new: "seen != nil &&",
		pkg: redisstock, by: []string{"TestASeqCountsWithinItsEpochOnly"}},
	{name: "the newest position not remembered", harm: "a Redis that lost its tail is not recognised by who saw it",
		file: goDesk, old: "seen.Seq > e.Applied {\n\t\treturn seen.Seq", new: "seen.Seq > e.Applied {\n\t\treturn e.Applied",
		pkg: redisstock, by: []string{"TestASeqCountsWithinItsEpochOnly"}},
	{name: "apply and settle in one lane", harm: "a full Redis can neither confirm nor release",
		file: goLane, old: "return &c.settle", new: "return &c.apply",
		pkg: redisstock, by: []string{"TestFullRedisRefusesToTakeAndStillSettles"}},
	{name: "the neighbour's reply", harm: "a caller is told what happened to somebody else's order",
		file: goReply, old: "p.answer = answer{time: r.time, epoch: epoch}", new: "p = batch[len(batch)-1-i]\n\t\tp.answer = answer{time: r.time, epoch: epoch}",
		pkg: redisstock, by: []string{"TestEveryCallerOfABatchGetsItsOwnAnswer"}},
	{name: "receipts do not count", harm: "two orders of one entry share a receipt",
		file: goReply, old: "receipt.Index++", new: "receipt.Index += 0",
		pkg: redisstock, by: []string{"TestEveryCallerOfABatchGetsItsOwnAnswer"}},
	{name: "receipts do not count where all was accepted", harm: "two orders of one entry share a receipt",
		file: goReply, old: "receipt.Index = i", new: "receipt.Index = 0",
		pkg: redisstock, by: []string{"TestThousandUnitsAreSoldOnceToManyCallers", "TestEveryCallerOfABatchGetsItsOwnAnswer"}},
	{name: "a lost reply is a refusal", harm: "a client is told that its order failed, and its units are held",
		file: goClass, old: `return class{reason: "unknown", unknown: true, known: true}`, new: `return class{reason: "unreachable", known: true}`,
		pkg: redisstock, by: []string{"TestLostReplyTakesStockOnce"}},
	{name: "a refusal after a lost reply is final at once", harm: "sold out is told of an order whose first try is still on its way",
		file: goDesk, old: "case unknownUntil >= a.time && !settled(a.outcome.Code):", new: "case unknownUntil < 0:",
		pkg: redisstock, by: []string{"TestRefusalAfterUnknownTryWaitsForItsDeadline"}},
	{name: "calls without a deadline", harm: "a call that waited in a socket takes stock after its caller was told a final refusal",
		file: goDesk, old: "deadline, w.text.Bytes())", new: "deadline+3_600_000, w.text.Bytes())",
		pkg: redisstock, by: []string{"TestACallCarriesItsCallersDeadlineInRedisTime"}},
	{name: "again is an answer", harm: "an order of a full call is refused for no reason",
		file: goDesk, old: "case a.outcome.Code == stock.Again:", new: "case a.outcome.Code == \"?\":",
		pkg: redisstock, by: []string{"TestWhatDoesNotFitIntoACallIsAskedAgain"}},
	{name: "who leaves is told that nothing was sent", harm: "a client that timed out sends another order in place of the same one",
		file: goLane, old: "return answer{left: true}", new: `return answer{class: class{reason: "busy", known: true}}`,
		pkg: redisstock, by: []string{"TestACallerWhoLeavesAfterTheCallWasSentIsToldUnknown"}},
	{name: "a short reply is believed", harm: "callers whose line is missing are told something",
		file: goReply, old: `if line == "" || more != (i < len(batch)-1) {`, new: `if line == "" || more && false {`,
		pkg: redisstock, by: []string{"TestAReplyOfAnotherLengthIsNoReply"}},
	{name: "the driver repeats", harm: "a takeover's put or open arrives twice",
		file: goConnect, old: "opt.MaxRetries = -1", new: "opt.MaxRetries = 3",
		pkg: redisstock, by: []string{"TestTheDriverSendsNothingTwice"}},
	{name: "a torn shard is nobody's business", harm: "the shard stays closed until somebody looks by chance",
		file: goDesk, old: "if cl.doubt || cl.reread {", new: "if false {",
		pkg: redisstock, by: []string{"TestClosedShardsRefuseByClass"}},
}
