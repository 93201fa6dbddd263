// Package order carries an order through its life: the flow between whoever asks (the HTTP server, an intake, a Go
// program of your own) and the Desk that decides. It turns SKU texts into numbers, sends the operation, looks the
// order up in Postgres when Redis has no record of it, turns a late confirm into the next attempt, writes documents in
// Postgres before they are decided, waits for the level of acknowledgement that was asked for, and sends again what a
// takeover lost. How each operation is answered in each state of an order is the table of decision 0006.
//
// It decides nothing about stock: that is the Desk's. It holds no state: several processes may serve one order.
// It knows the stores only as the small contracts below, so it is usable, and tested, without either.
package order
