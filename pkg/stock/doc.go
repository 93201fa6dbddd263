// Package stock holds the nouns of stockpipe: quantities, lines, orders, positions, operations, their
// outcomes, and the contracts between the parts. It imports nothing of the project and talks to nothing:
// a newcomer can read it as the glossary, an adapter implements it, and everything else speaks in its words.
//
// It is not the place for formats (package event), for Redis (redisstock) or for Postgres (ledger).
package stock
