package main

const (
	orders      = "pkg/order"
	goClerk     = "pkg/order/clerk.go"
	goConfirm   = "pkg/order/confirm.go"
	goPaper     = "pkg/order/document.go"
	goWatch     = "pkg/ledger/watch.go"
	producerWeb = "producer/internal/server"
)

var orderMutants = []mutant{
	{name: "an acceptance under an older epoch not resolved", harm: "an isolated old master sells, and nobody is told that it is lost",
		file: goClerk, old: "standing, err = c.parts.Receipts.Resolve(ctx, receipt)", new: "standing, err = stock.StandingAccepted, nil",
		pkg: orders, by: []string{"TestAnAcceptanceOfAnOldMasterDoesNotCount"}},
	{name: "sold out of an old master believed", harm: "a full shelf is called sold out",
		file: goClerk, old: "c.parts.Epochs.Epoch(shard).Epoch != before {", new: "before < 0 {",
		pkg: orders, by: []string{"TestSoldOutOfAnOldMasterIsNotBelieved"}},
	{name: "ack before commit", harm: "200 is answered to a confirm that a takeover loses",
		file: goClerk, old: "if err != nil {\n\t\treturn stock.StandingAccepted\n\t}", new: "if err != nil {\n\t\treturn stock.StandingPersisted\n\t}",
		pkg: producerWeb, by: []string{"TestAConfirmIs200OnlyWhenItIsPersisted"}},
	{name: "what a takeover lost is not sent again", harm: "an order that could be taken is refused",
		file: goClerk, old: "case stock.StandingLost:\n\t\t\tcontinue", new: "case stock.StandingLost:",
		pkg: orders, by: []string{"TestWhatATakeoverLostIsSentAgainUnderTheSameAttempt"}},
	{name: "a shortfall told before it is recorded", harm: "a buyer paid, nothing is there, and nobody knows whom to refund",
		file: goConfirm, old: "err := c.parts.Orders.Shortfall(ctx, shard, id, attempt, short); err != nil", new: "err := error(nil); err != nil",
		pkg: producerWeb, by: []string{"TestALateConfirmThatIsShortIsRecordedBeforeItIsTold"}},
	{name: "an older attempt's confirm meets a newer one", harm: "a repeat of an old call is told that a later order is its own",
		file: goConfirm, old: "repeat := sold && r.Attempt == attempt", new: "repeat := sold",
		pkg: orders, by: []string{"TestAConfirmOfAnAttemptLongGoneIsNoRepeatOfALaterOne", "TestAnOldCallCannotTouchANewerAttempt"}},
	{name: "a refusal of a document told from memory", harm: "another document is sent in place of one that a takeover lets through",
		file: goPaper, old: "if ack != Persisted && state != Refused {", new: "if ack != Persisted {",
		pkg: orders, by: []string{"TestARefusalIsToldOnlyWhenTheLedgerHasIt"}},
	{name: "epoch age ignored", harm: "a producer that is cut off from Postgres sells from a dead master for ever",
		file: goWatch, old: "stale := w.Age() > w.config.MaxAge", new: "stale := w.Age() < 0",
		pkg: ledgers, by: []string{"TestKnowledgeThatGrowsOldClosesTheShard"}},
	{name: "receipts answered from memory whatever their epoch", harm: "lost orders are called accepted",
		file: goWatch, old: "known = v.epoch == v.current", new: "known = true",
		pkg: ledgers, by: []string{"TestAnAcceptanceIsAnsweredOnlyUnderTheNewestEpoch"}},
	{name: "the exchange is a read", harm: "an isolated old primary of Postgres keeps a dead master selling",
		file: goWatch, old: `if w.config.ProducerID == "" {
		rows, err`, new: `if true {
		rows, err`,
		pkg: ledgers, by: []string{"TestTheExchangeIsAWrite"}},
}
