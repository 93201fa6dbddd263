package api

// An OpeningRequest creates a SKU with its opening stock.
type OpeningRequest struct {
	Opening int64  `json:"opening" minimum:"0" maximum:"999999999" doc:"Units at the start. The same opening again answers 200, another one 409."`
	Ack     string `json:"ack,omitempty" enum:"memory,persisted" default:"persisted" doc:"The level to wait for."`
}

// A ReceiveRequest brings goods in.
type ReceiveRequest struct {
	DocumentID string `json:"document_id" minLength:"1" maxLength:"64" pattern:"^[A-Za-z0-9._:-]+$" doc:"Unique for ever; sent again it answers the original outcome and moves nothing."`
	Quantity   int64  `json:"quantity" minimum:"1" maximum:"999999999" doc:"Units that came in."`
	Reason     string `json:"reason,omitempty" maxLength:"32" pattern:"^[A-Za-z0-9._-]+$" default:"received" doc:"A code for reports."`
	Note       string `json:"note,omitempty" maxLength:"1024" doc:"Free text; it never leaves Postgres."`
	Ack        string `json:"ack,omitempty" enum:"memory,persisted" default:"persisted" doc:"The level to wait for."`
}

// An AdjustRequest corrects the available units by a signed quantity.
type AdjustRequest struct {
	DocumentID string `json:"document_id" minLength:"1" maxLength:"64" pattern:"^[A-Za-z0-9._:-]+$" doc:"Unique for ever; sent again it answers the original outcome and moves nothing."`
	Quantity   int64  `json:"quantity" minimum:"-999999999" maximum:"999999999" doc:"Signed and not 0. Available never goes below 0: 409 refused."`
	Reason     string `json:"reason" minLength:"1" maxLength:"32" pattern:"^[A-Za-z0-9._-]+$" doc:"A code for reports, for example damaged."`
	Note       string `json:"note,omitempty" maxLength:"1024" doc:"Free text; it never leaves Postgres."`
	Ack        string `json:"ack,omitempty" enum:"memory,persisted" default:"persisted" doc:"The level to wait for."`
}

// A Document is what became of a movement of stock.
type Document struct {
	DocumentID string `json:"document_id,omitempty" doc:"As it was sent; absent for an opening."`
	Kind       string `json:"kind" enum:"opening,receive,adjust"`
	SKU        string `json:"sku"`
	Quantity   int64  `json:"quantity" doc:"Signed units."`
	Reason     string `json:"reason,omitempty"`
	State      string `json:"state" enum:"written,applied,refused" doc:"written: in Postgres and not yet decided; the other two are final once the level is persisted."`
	Receipt    string `json:"receipt,omitempty" doc:"Of its entry, once it has one."`
	Level      string `json:"level,omitempty" enum:"memory,persisted" doc:"The level that its outcome has reached; absent while it has none."`
	Replayed   bool   `json:"replayed" doc:"True when the outcome was known before this call."`
}

// Quantities of a SKU in one store. on_hand is their sum.
type Quantities struct {
	Available int64 `json:"available"`
	Held      int64 `json:"held" doc:"Promised for a time, unpaid."`
	Committed int64 `json:"committed" doc:"Sold, not shipped."`
	OnHand    int64 `json:"on_hand"`
}

// Stock is what both stores say of a SKU. They are read one after the other: where the positions differ, so may
// the figures, and that is no error.
type Stock struct {
	SKU     string  `json:"sku"`
	Shard   int     `json:"shard"`
	Opening int64   `json:"opening"`
	Redis   *Figure `json:"redis,omitempty" doc:"Live; absent when Redis does not have the SKU or cannot be asked."`
	Ledger  *Figure `json:"ledger,omitempty" doc:"Persisted; absent when the opening is not applied yet or Postgres cannot be asked."`
	// Incomplete names the stores that could not be asked.
	Incomplete []string `json:"incomplete,omitempty" doc:"Stores that did not answer."`
}

// A Figure is the quantities of a SKU at a position of its shard's log.
type Figure struct {
	Quantities
	Position string `json:"position" doc:"<epoch>-<seq>"`
	Frozen   bool   `json:"frozen,omitempty" doc:"In doubt: nothing is taken until it is lifted."`
}
