// Package audit proves that Redis and Postgres agree, online, while writers and consumers run, or names what
// disagrees. It reads only. What it checks is the equation that the whole product hangs on:
//
//	state in Redis at q  =  state in Postgres at p  +  log entries in (p .. q]
//
// and, because a stale replica that was promoted satisfies it (it is a consistent older state), whether this
// very Redis process was opened by the takeover that the ledger knows.
//
// # Why it raises no false alarm
//
// Three readings are made, in this order, and each is atomic in itself:
//
//  1. The view: one REPEATABLE READ snapshot of Postgres. It fixes p = (epoch, applied) and everything that the
//     ledger says at p. Orders that turn out to be needed later are read from the same snapshot.
//  2. The sample: one MULTI in Redis. It fixes q, all stock, the records of the orders that are compared, a
//     page of Redis' own records, the last entry and the process' status. No record is ever compared with one
//     that was read in another call.
//  3. The log between p and q. Entries are never changed, only appended and, below what the ledger has applied,
//     trimmed; so reading them later, in pages, reads what was there at q, or finds that they are gone.
//
// What can happen in between, and what is done about it:
//
//   - Writers go on. They write behind q; entries behind q are not looked at.
//   - Consumers go on. The view stays at p: what they persist later, or trim because they persisted it, is not
//     a part of this audit. The order view, then sample makes p ≤ q while the epoch is the same: a Redis whose
//     q is below p has lost something (rewound).
//   - The log is trimmed above p before it is read. A missing entry is an alarm only when the ledger, asked
//     again after the entry was found missing, still has not applied it: trimming never goes beyond that. If
//     the ledger has applied it, the audit starts again with a later p.
//   - A takeover happens between the view and the sample, or between the sample and the log. The sample then
//     shows another epoch or a closed shard, and the row, read again, has moved: the audit starts again. An old
//     log that a takeover renamed is found missing entries while the row has moved: the same.
//   - A takeover is at work for the whole time. Then there is nothing to compare; the audit waits a little and
//     starts again, and gives up with ErrUnsettled, which is an error of the audit and no alarm.
//   - Redis was replaced by another process between sample and log reading. The sample is judged by itself; a
//     log that lacks entries is judged by the row as above, and the next probe sees the process.
//   - A record is dropped because its retention ends, or is about to be. What last moved about one retention ago,
//     give or take a tenth of it, is not compared, unless the log since p moved it. What is older is rightly gone,
//     and is compared where it is still there: forgetting may lag, and a record that is there answers repeats.
//   - An order is shipped or cancelled when its record may be gone. The document then counts on no record: the row
//     changes, but for its position, and no record does.
//   - A limit is switched on or off. What buyers have is compared only of SKUs of which Redis says that it counted
//     in full: a takeover says so, and switching the limit off takes it back in the same call. A limit that nobody
//     counts is a class of its own (uncounted), whose remedy is a takeover; it is told once the ledger knows of it.
//   - The ledger applied an entry whose after-image disagreed, and froze the SKU. That SKU is known to be in
//     doubt: it is reported with the ledger's words, and its settings are not compared.
//
// Whatever is left differs at one and the same position, and is reported with the key and both figures.
//
// An audit reads all SKUs, and one page of orders and of what buyers have from each side: those of Postgres are looked
// up in Redis, and those of Redis in Postgres, so that neither a missing nor an invented one escapes a sweep (Sweep, or
// Run with the cursor of the report before).
package audit
