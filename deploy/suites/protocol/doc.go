// Package protocol tests the core protocol where it lives: on a real Redis and a real Postgres, wired as the
// roles wire them. It plays the scenario tables of pkg/stock/stocktest, and a random machine that compares the
// model, Redis, the replay of the log and Postgres after each step. All of it is tests; nothing is exported.
//
// Time: holds last at least a second, and a suite that waits for them would be slow or would hardly ever expire
// anything. The library is therefore loaded with one line changed: its clock, the only one by which Redis decides
// anything, is TIME plus a number that a test sets. Nothing else differs from what is shipped, and
// TestAHoldEndsByRedisOwnClock goes the same way with the text as it is and a hold of one second.
package protocol
