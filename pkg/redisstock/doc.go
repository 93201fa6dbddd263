// Package redisstock decides stock in Redis: the function library in library/*.lua, the client that calls it,
// and the Desk that lets many callers share one call (group commit).
//
// An order's record is written in one place: library/3_apply.lua (commit). Go only asks and reads answers.
// Shard is the raw access that takeover, audit and reconciler use; Desk is what producers use. The package
// knows nothing of Postgres: epochs reach it through stock.Epochs.
package redisstock
