// Package repair keeps shards well: it opens what is not open, ends holds whose time is over, finishes documents
// that were written but not moved, audits, and acts on what an audit finds. Any number of processes may do so: all
// work on a shard is done under its turn, a short lease in Postgres, and what makes it safe even without the turn is
// that each act is either a takeover, which has a claim, or an operation that is recognised when it is repeated.
//
// The rules:
//
//   - A repair is a new event or a takeover, never an edit of Redis or of a row.
//   - Nothing is acted on that comes from two readings which are not of one moment: the probe reads the row before
//     and after Redis, the audit compares at one position.
//   - Where it is not certain what is right, fewer units are sold: a SKU is frozen, a shard is halted.
//   - Every repair is written down before it is made, with its evidence, and after it, with what came of it.
//   - A shard that is halted, and a Redis that another ledger wrote, wait for a person.
//
// It knows one adapter, the ledger; Redis is what packages takeover, audit and stock ask for. It logs nothing:
// Config.Tell hears what is worth a line.
package repair
