package api

// Words for what the ledger says of a receipt.
const (
	StandingPersisted = "persisted" // committed in Postgres
	StandingAccepted  = "accepted"  // Redis took it, Postgres has not reached it yet
	StandingLost      = "lost"      // it will never be persisted: send the order again
	StandingUnknown   = "unknown"   // cannot be told now: ask again
)

// An Order is everything that both stores know of an order id.
type Order struct {
	OrderID  string  `json:"order_id"`
	Receipt  string  `json:"receipt,omitempty" doc:"The receipt that standing is about: the one asked for, else that of the newest match."`
	Standing string  `json:"standing" enum:"persisted,accepted,lost,unknown" doc:"Exactly one of these. An order may be persisted while one of its changes is not."`
	Matches  []Match `json:"matches" doc:"Every shard that knows the id."`
	// Incomplete names stores that could not be asked; what they know is missing from Matches.
	Incomplete []string `json:"incomplete,omitempty" doc:"Stores that did not answer: redis shard <n>, ledger."`
}

// A Match is what one shard knows of an order id.
type Match struct {
	Shard  int     `json:"shard"`
	Redis  *Record `json:"redis,omitempty" doc:"The record in Redis; dropped there some time after the order ended."`
	Ledger *Record `json:"ledger,omitempty" doc:"The row of the newest attempt in Postgres."`
}

// A Record is one attempt as one store knows it.
type Record struct {
	Attempt   int64       `json:"attempt"`
	State     string      `json:"state" enum:"held,confirmed,released,expired,cancelled,fulfilled"`
	Receipt   string      `json:"receipt" doc:"Of its last change."`
	Buyer     string      `json:"buyer,omitempty"`
	ExpiresAt string      `json:"expires_at,omitempty" format:"date-time"`
	Lines     []OrderLine `json:"lines"`
}
