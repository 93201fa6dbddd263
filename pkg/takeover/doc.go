// Package takeover opens a shard: it claims an epoch in Postgres, fences one Redis process under it, lets the
// ledger catch up with what that Redis' log still has, closes the epoch before, rebuilds Redis from the
// ledger, reads it back, and opens it. It also says which shards need that (Diagnose).
//
// Whatever restarted, was promoted, was flushed or was rewound refuses to sell until a takeover went through,
// so correctness never depends on noticing a fault in time: noticing only ends the refusal.
//
// The steps and their order are those of the protocol, section H (deploy/docs/design). Each has a reason that a bounded model of the protocol
// found by breaking the text without it; the reasons marked [model] stand beside the lines in attempt.go. What
// the whole leans on:
//
//   - One attempt has an epoch and a nonce that no other attempt has, and every call carries both. An attempt
//     never repeats a step whose outcome it does not know. It ends, and the next one has a higher epoch.
//   - From the fence on, everything happens in one server process: the fence is kept in that process' memory.
//     A restart, a late copy of a call or a restored dump in between makes the next call a refusal.
//   - The ledger decides which attempt is the newest. A stalled attempt that comes back finds its conditions
//     gone, in Redis (a higher epoch) or in Postgres (a newer claim).
//
// What Redis has to contain is read in pages and put as it is read; of each field an attempt keeps two hashes (mark.go),
// so a takeover of millions of records fits into a small process.
//
// A crash at any point leaves the shard closed. The package talks to Redis and Postgres only through the small
// interfaces of contract.go, and never decides by a clock.
package takeover
