// Package ledger is the system of record in Postgres. Apply persists the log of a shard, entry by entry and
// exactly once, as an exact past of what Redis decided; everything else reads that past or moves a shard from
// one epoch to the next.
//
// A reader's order: ledger.go (Open), shard.go, apply.go → transaction.go → fold.go → write.go → copy.go
// (one batch becomes one transaction; a new order's row is made in copy.go, what few batches change in amend.go and
// line.go), halt.go (what cannot be applied), claim.go and snapshot.go (a takeover's steps), view.go and invariant.go (what
// an audit reads), bought.go (limits: what buyers have, kept by the first and read by both); then sku.go, catalog.go and document.go with draft.go, opening.go,
// orderdocument.go and stocktake.go (what is written before Redis is asked), forget.go, prune.go and deletion.go (what ends),
// watch.go, waiter.go and standing.go (what producers know), assignment.go, turn.go and producer.go (who lives).
//
// It is not the place that says what an operation does (event.Book) nor what text means (package event), and
// it never talks to Redis.
package ledger
