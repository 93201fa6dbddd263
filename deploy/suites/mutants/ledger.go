package main

const (
	ledgers   = "pkg/ledger"
	events    = "pkg/event"
	goBook    = "pkg/event/book.go"
	goHold    = "pkg/event/hold.go"
	goTx      = "pkg/ledger/transaction.go"
	goWrite   = "pkg/ledger/write.go"
	goKnown   = "pkg/ledger/known.go"
	goFold    = "pkg/ledger/fold.go"
	goApply   = "pkg/ledger/apply.go"
	goClaim   = "pkg/ledger/claim.go"
	goHalt    = "pkg/ledger/halt.go"
	goDue     = "pkg/ledger/due.go"
	goTurn    = "pkg/ledger/turn.go"
	goDoc     = "pkg/ledger/document.go"
	goDraft   = "pkg/ledger/draft.go"
	goStand   = "pkg/ledger/standing.go"
	goInvar   = "pkg/ledger/invariant.go"
	goSnap    = "pkg/ledger/snapshot.go"
	goOutcome = "pkg/ledger/outcome.go"
	goBought  = "pkg/ledger/bought.go"
	goPrune   = "pkg/ledger/prune.go"
	goForget  = "pkg/ledger/forget.go"
)

var ledgerMutants = []mutant{
	// The fold.
	{name: "a release takes away", harm: "every release and expiry loses units in Postgres",
		file: goHold, old: "b.shift(after.Lines, 1, -1, 0)", new: "b.shift(after.Lines, -1, -1, 0)",
		pkg: events, by: []string{"TestOperationsMoveUnits", "TestStockIsTheSumOfItsOrders"}},
	{name: "a reserve gives", harm: "every order adds the units that it takes",
		file: goHold, old: "b.shift(op.Lines, -1, 1, 0)", new: "b.shift(op.Lines, 1, 1, 0)",
		pkg: events, by: []string{"TestOperationsMoveUnits"}},
	{name: "no after-image check", harm: "a hand in Redis is persisted as if orders had done it",
		file: goBook, old: "ours != a.Quantities {", new: "false {",
		pkg: ledgers, by: []string{"TestAWrongAfterImageFreezesOneSKUAndTheRestGoesOn"}},
	{name: "stock below zero is no poison", harm: "a log that oversells is persisted",
		file: goBook, old: "if !q.Valid() {", new: "if false {",
		pkg: events, by: []string{"TestWhatContradictsTheBookIsPoison", "TestStockBeyondItsBoundIsPoison"}},
	{name: "an entry is not compared with its document", harm: "stock moves by other units than the document that it settles",
		file: goFold, old: "if why := f.unfit(op); why != \"\" {", new: "if why := f.unfit(op); why == \"?\" {",
		pkg: ledgers, by: []string{"TestWhatTheLogAndTheTableTellDifferentlyHaltsAndNamesBoth"}},
	{name: "an order begins again inside its retention", harm: "an order that a restored Redis forgot takes units twice",
		file: goFold, old: "if !read || old.recent {", new: "if !read || old.recent && false {",
		pkg: ledgers, by: []string{"TestAnOrderBegunAgainInsideItsRetentionHalts"}},
	{name: "the first row under the attempt that was asked", harm: "an order that begins anew gets a key below its earlier life's, and the older row is taken for the newest",
		file: goFold, old: "m := madeOrder{Reservation: c.After, key: 1}", new: "m := madeOrder{Reservation: c.After, key: c.After.Attempt}",
		pkg: ledgers, by: []string{"TestTheNewestRowHasTheHighestKey"}},

	// What buyers have.
	{name: "what a buyer gave back still counts", harm: "after a takeover buyers are refused what they may have",
		file: goBought, old: "less.add(key, -n)", new: "less.add(key, 0)",
		pkg: ledgers, by: []string{"TestWhatBuyersHaveFollowsEachBatch", "TestWhatBuyersHaveIsAlwaysTheSumOfTheirOrders"}},
	{name: "a limit that was switched on is not counted", harm: "whoever bought before the limit buys as much again",
		file: goBought, old: "if len(limited) > 0 {", new: "if len(limited) > 0 && anew {",
		pkg: ledgers, by: []string{"TestWhatBuyersHaveFollowsEachBatch", "TestWhatBuyersHaveIsHeldConfirmedAndShipped"}},
	{name: "documents of forgotten orders change no count", harm: "who cancels after a day is refused the units that came back",
		file: goBought, old: "for _, m := range f.amends.late {\n\t\tadd(", new: "for _, m := range f.amends.late {\n\t\tcontinue\n\t\tadd(",
		pkg: ledgers, by: []string{"TestWhatBuyersHaveIsAlwaysTheSumOfTheirOrders"}},
	{name: "a count that does not fit is left so", harm: "what somebody edited stays wrong, and the sale goes on by it",
		file: goBought, old: "found != n {", new: "false {",
		pkg: ledgers, by: []string{"TestWhatSomebodyElseChangedOfWhatBuyersHaveIsCountedAnew"}},
	{name: "what buyers have is not summed up", harm: "a count that no order stands behind is called sound",
		file: goInvar, old: "where coalesce(b.units, 0) <> coalesce(o.units, 0)", new: "where b.units < 0 and o.units > 0",
		pkg: ledgers, by: []string{"TestEveryInvariantCanBreak"}},

	// What ends.
	{name: "an order pruned attempt by attempt", harm: "an order that begins anew takes the key of a row that is gone, and returns go to another life",
		file: goPrune, old: "having count(*) = (select count(*) from reservation r where r.shard = $1 and r.order_id = o.id)", new: "having count(*) > 0",
		pkg: ledgers, by: []string{"TestAnOrderIsPrunedWhole"}},
	{name: "a record forgotten while a document counts on it", harm: "a cancellation finds no record, and the order stays confirmed in Redis' place",
		file: goForget, old: "            and not exists (` + waitingFor + `)\n", new: "",
		pkg: ledgers, by: []string{"TestARecordThatADocumentCountsOnIsKeptUntilItIsSettled"}},
	{name: "records are listed in front of the fence", harm: "a document that is written meanwhile counts on a record that goes",
		file: goForget, old: "err := moveFence(ctx, tx, shard, max(olderThan, forgetLag)); err != nil", new: "err := error(nil); err != nil",
		pkg: ledgers, by: []string{"TestTheFenceWaitsForADocumentThatIsBeingWritten", "TestARecordThatADocumentCountsOnIsKeptUntilItIsSettled"}},

	// The prefix.
	{name: "gap ignored", harm: "a lost entry is never missed",
		file: goTx, old: "case p.Seq == next:", new: "case p.Seq >= next:",
		pkg: ledgers, by: []string{"TestAGapStopsApplyAndThePrefixStands"}},
	{name: "the same position twice with other content", harm: "which of two histories is persisted is a matter of luck",
		file: goTx, old: "if it.raw != t.batch.items[i-1].raw {", new: "if false {",
		pkg: ledgers, by: []string{"TestTwoContentsOfOnePositionInABatchHalt"}},
	{name: "what stands is not compared", harm: "a Redis with another history under the same positions is followed",
		file: goKnown, old: "s != nil && !s.same(it)", new: "s != nil && false",
		pkg: ledgers, by: []string{"TestALogThatForkedHalts"}},
	{name: "an orphan counts as applied", harm: "orders that a takeover lost are lost without a trace",
		file: goKnown, old: "it.position.Seq > ends[it.position.Epoch] {", new: "it.position.Seq > ends[it.position.Epoch] && false {",
		pkg: ledgers, by: []string{"TestWhatAClosedEpochHasBeyondItsEndIsAnOrphan"}},
	{name: "an orphan is poison", harm: "the leftovers of every failover halt the shard",
		file: goKnown, old: "stray = append(stray, it.raw)\n\t\t} else {",
		new: "return 0, &poisonError{at: i, first: i, have: t.have, raw: it.raw, why: \"beyond the end\"}\n\t\t} else {",
		pkg: ledgers, by: []string{"TestWhatAClosedEpochHasBeyondItsEndIsAnOrphan"}},
	{name: "an epoch may continue any position", harm: "a Redis that was rebuilt from something else is followed",
		file: goTx, old: "if named == closed {", new: "if named == closed || closed.Seq >= 0 {",
		pkg: ledgers, by: []string{"TestAnEpochThatContinuesAnotherPositionHalts"}},
	{name: "applied not advanced", harm: "every entry is applied twice, and the second time halts the shard",
		file: goWrite, old: "set applied = $3 where", new: "set applied = least($3, $4) where",
		pkg: ledgers, by: []string{"TestABatchIsPersistedAndItsReplayIsANoOp"}},
	{name: "applied advanced in another transaction", harm: "a crash between the two applies entries twice",
		file: goWrite, old: "u.queue(1, \"the shard's position\"", new: "u.batch.Queue(`commit`)\n\tu.batch.Queue(`begin`)\n\tu.queue(1, \"the shard's position\"",
		pkg: ledgers, by: []string{"TestOrdersAndPositionAreOneTransaction"}},
	{name: "short count ignored", harm: "a transition that found no row is lost in silence",
		file: goWrite, old: "if tag.RowsAffected() != int64(rows) {", new: "if false {",
		pkg: ledgers, by: []string{"TestARowThatIsNotThereHaltsOnlyTheSecondTime"}},
	{name: "a CHECK violation swallowed", harm: "entries that Postgres refused are called applied",
		file: goTx, old: "return one{}, t.blame(err)", new: "return one{Applied: Applied{Position: done.Position}}, nil",
		pkg: ledgers, by: []string{"TestARefusalByPostgresIsIsolatedToItsEntry"}},
	{name: "a CHECK violation is tried for ever", harm: "one bad entry stops a shard without anybody being told",
		file: goApply, old: `return answer.Code[:2] == "23" ||`, new: `return answer.Code[:2] == "99" ||`,
		pkg: ledgers, by: []string{"TestARefusalByPostgresIsIsolatedToItsEntry"}},
	{name: "a lost reply to the commit is a failure", harm: "a batch that is persisted is reported as not",
		file: goApply, old: "errors.Is(err, errCommit) && commits < maxConflicts", new: "errors.Is(err, errCommit) && commits < 0",
		pkg: ledgers, by: []string{"TestALostReplyToTheCommitIsLookedUp"}},
	{name: "what is halted is applied", harm: "a shard goes on behind the entry that an operator has to look at",
		file: goTx, old: "if found && state == StateHalted {", new: "if found && state == \"?\" {",
		pkg: ledgers, by: []string{"TestAnAutomaticClaimLeavesAHaltedShardAlone"}},
	{name: "a halt by an old judgement", harm: "a consumer that was held up halts a shard that others repaired",
		file: goHalt, old: "epoch = $2 and applied = $3 and state <> 'halted'", new: "$2::bigint > 0 and $3::bigint >= 0 and state <> 'halted'",
		pkg: ledgers, by: []string{"TestAnEntryJudgedAtAnOlderPositionDoesNotHalt"}},

	// Claims and epochs.
	{name: "claim not checked", harm: "a stalled takeover ends the epoch of the one that overtook it",
		file: goClaim, old: "number = $1 and claim = $2 and claim_nonce = $3 for no key update", new: "number = $1 and $2::bigint > 0 and $3::text <> '' for no key update",
		pkg: ledgers, by: []string{"TestAStaleClaimIsRefusedAtEveryStep"}},
	{name: "open said without the claim", harm: "the ledger says open of a shard that nobody opened",
		file: goClaim, old: "claim = $2 and claim_nonce = $3 and epoch = $2 and state = 'rebuilding'", new: "$2::bigint > 0 and $3::text <> ''",
		pkg: ledgers, by: []string{"TestAStaleClaimIsRefusedAtEveryStep"}},
	{name: "an automatic claim on a halted shard", harm: "what an operator has to see is repaired away",
		file: goClaim, old: "(state <> 'halted' or $4)", new: "(state <> '' or $4)",
		pkg: ledgers, by: []string{"TestAnAutomaticClaimLeavesAHaltedShardAlone"}},
	{name: "a claim below Redis' epoch", harm: "after a failover of Postgres no takeover can fence",
		file: goClaim, old: "greatest(claim, epoch, ` + seen + `::bigint,", new: "greatest(claim, epoch, 0 * ` + seen + `::bigint,",
		pkg: ledgers, by: []string{"TestEveryClaimIsAboveEverythingSeen"}},
	{name: "a claim without the standby", harm: "a failover forgets a claim and gives its epoch out again",
		file: goClaim, old: "set local synchronous_commit = on", new: "set local synchronous_commit = off",
		pkg: ledgers, by: []string{"TestAClaimWaitsForTheStandbysWhateverTheSessionSays"}},
	{name: "epoch_end from a stale applied", harm: "orders that a consumer persisted are called lost",
		file: goClaim, old: "claim_nonce = $3 for no key update", new: "claim_nonce = $3",
		pkg: ledgers, by: []string{"TestAnEpochEndsWhereAnApplierUnderWayLeavesIt"}},
	{name: "O followed by any position", harm: "an epoch that continues another history is followed",
		file: goClaim, old: "named != newest && named != at ||", new: "named != newest && named != at && named.Seq < 0 ||",
		pkg: ledgers, by: []string{"TestAnOpenedEpochIsFollowedByATakeoverOnly"}},
	{name: "seq compared across epochs", harm: "lost receipts are called persisted",
		file: goStand, old: "case v.epoch == v.current && seq <= v.applied:", new: "case seq <= v.applied:",
		pkg: ledgers, by: []string{"TestStandingFollowsTheHistoryOfTheShard"}},
	{name: "a snapshot of an epoch that is open", harm: "Redis is rebuilt from numbers that a consumer is moving",
		file: goSnap, old: "and epoch = $2 and applied = 0 and state = 'rebuilding'", new: "",
		pkg: ledgers, by: []string{"TestASnapshotIsOfAnEpochThatHasNotBegun"}},

	// Documents, holds, turns.
	{name: "due by one clock", harm: "holds are ended at once when Redis' clock jumps",
		file: goDue, old: "state = 'held' and due <= now() and (due, order_id)", new: "state = 'held' and (due, order_id)",
		pkg: ledgers, by: []string{"TestDueHoldsComeOldestFirstPageByPage"}},
	{name: "a document with a deadline that somebody else renewed", harm: "two reconcilers renew one document, and it moves twice",
		file: goDoc, old: "and deadline_ms = $2 and state = 'written'", new: "and $2::bigint > 0 and state = 'written'",
		pkg: ledgers, by: []string{"TestADeadlineIsRenewedOnceAndOnlyWhileWritten"}},
	{name: "a settled document gets a new deadline", harm: "what was moved is moved again",
		file: goDoc, old: "deadline_ms = $2 and state = 'written'", new: "deadline_ms = $2",
		pkg: ledgers, by: []string{"TestADeadlineIsRenewedOnceAndOnlyWhileWritten"}},
	{name: "a document id with other content", harm: "a second delivery under a used number vanishes in silence",
		file: goDraft, old: "if f[1] != f[2] {", new: "if false {",
		pkg: ledgers, by: []string{"TestDocumentKeepsItsOutcomeForEver"}},
	{name: "turn not checked", harm: "two reconcilers take over one shard against each other",
		file: goTurn, old: "where t.holder = excluded.holder or", new: "where true or",
		pkg: ledgers, by: []string{"TestTheTurnHasOneHolder"}},
	{name: "an outcome told twice is two rows", harm: "a buyer is refunded twice",
		file: goOutcome, old: " on conflict do nothing", new: "",
		pkg: ledgers, by: []string{"TestAnOutcomeToldAgainIsOneRow"}},
	{name: "committed is not summed up", harm: "a ledger whose orders and stock disagree is called sound",
		file: goInvar, old: "s.committed <> coalesce(o.units, 0)", new: "s.committed < 0 and s.committed <> coalesce(o.units, 0)",
		pkg: ledgers, by: []string{"TestEveryInvariantCanBreak"}},
}
