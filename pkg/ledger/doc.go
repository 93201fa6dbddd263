// Package ledger is the system of record in Postgres. Apply persists the log of a shard, entry by entry and
// exactly once, as an exact past of what Redis decided; everything else reads that past or moves a shard from
// one epoch to the next.
//
// A reader's order: ledger.go (Open), shard.go, apply.go → fold.go → copy.go (one batch becomes one
// transaction), halt.go (what cannot be applied), claim.go and snapshot.go (a takeover's steps), view.go and
// invariant.go (what an audit reads).
//
// It is not the place that says what an operation does (event.Book) nor what text means (package event), and
// it never talks to Redis.
package ledger
