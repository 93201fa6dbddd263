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

// A CountRequest posts a stocktake: what was on the shelf at a moment, held and sold units included. What moved since
// stays moved.
type CountRequest struct {
	DocumentID string `json:"document_id" minLength:"1" maxLength:"64" pattern:"^[A-Za-z0-9._:-]+$" doc:"Unique for ever; sent again it answers the original outcome and moves nothing."`
	Counted    int64  `json:"counted" minimum:"0" maximum:"999999999" doc:"Units that were there. Below what is held and sold now: 409 insufficient, with the holds."`
	Position   string `json:"position,omitempty" doc:"When it was counted, as the position that a look at the SKU answered: <epoch>-<seq>."`
	At         string `json:"at,omitempty" format:"date-time" doc:"When it was counted, RFC 3339. With neither, now."`
	Reason     string `json:"reason,omitempty" maxLength:"32" pattern:"^[A-Za-z0-9._-]+$" default:"counted" doc:"A code for reports."`
	Note       string `json:"note,omitempty" maxLength:"1024" doc:"Free text; it never leaves Postgres."`
	Ack        string `json:"ack,omitempty" enum:"memory,persisted" default:"persisted" doc:"The level to wait for."`
}

// A StockReturnRequest takes units back that belong to no known order.
type StockReturnRequest struct {
	DocumentID string `json:"document_id" minLength:"1" maxLength:"64" pattern:"^[A-Za-z0-9._:-]+$" doc:"Unique for ever; sent again it answers the original outcome and moves nothing."`
	Quantity   int64  `json:"quantity" minimum:"1" maximum:"999999999" doc:"Units that came back."`
	Scrap      bool   `json:"scrap,omitempty" doc:"They are not for sale: it is recorded, and nothing moves."`
	Reason     string `json:"reason,omitempty" maxLength:"32" pattern:"^[A-Za-z0-9._-]+$" default:"returned" doc:"A code for reports."`
	Note       string `json:"note,omitempty" maxLength:"1024" doc:"Free text; it never leaves Postgres."`
	Ack        string `json:"ack,omitempty" enum:"memory,persisted" default:"persisted" doc:"The level to wait for."`
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

// A Figure is the quantities of a SKU at a position of its shard's log, and how it is set there.
type Figure struct {
	Quantities
	Position string `json:"position" doc:"<epoch>-<seq>"`
	Settings
}

// Settings of a SKU; what is absent is off.
type Settings struct {
	OpensAt    string `json:"opens_at,omitempty" format:"date-time" doc:"Nothing is sold before."`
	BuyerLimit int64  `json:"buyer_limit,omitempty" doc:"Units per buyer, over all orders: held, sold and shipped."`
	Frozen     bool   `json:"frozen,omitempty" doc:"In doubt, or stopped by an operator: nothing is taken until it is lifted."`
	Closed     bool   `json:"closed,omitempty" doc:"Closed for sale by the shop."`
}

// A SettingsRequest changes settings of a SKU; what is absent stays.
type SettingsRequest struct {
	OpensAt    string `json:"opens_at,omitempty" format:"date-time" doc:"Nothing is sold before, RFC 3339; a time that has passed opens at once."`
	BuyerLimit *int64 `json:"buyer_limit,omitempty" minimum:"0" maximum:"999999999" nullable:"false" doc:"Units per buyer, over all orders; 0 is no limit. Switched on, nothing is sold until what buyers have is counted, by a takeover of the shard."`
	Frozen     *bool  `json:"frozen,omitempty" nullable:"false" doc:"Stop the SKU, or lift a freeze whose doubt is settled."`
	Closed     *bool  `json:"closed,omitempty" nullable:"false" doc:"Close the SKU for sale, or open it again."`
	Ack        string `json:"ack,omitempty" enum:"memory,persisted" default:"persisted" doc:"The level to wait for."`
}

// A SettingsAnswer is how a SKU is set after a change.
type SettingsAnswer struct {
	SKU      string   `json:"sku"`
	Settings Settings `json:"settings"`
	Receipt  string   `json:"receipt" doc:"Of the change."`
	Level    string   `json:"level" enum:"memory,persisted" doc:"The level that was reached before this answer."`
	Hint     string   `json:"hint,omitempty" doc:"What is still to come before it sells."`
}

// A DeleteAnswer is how far the deletion of a SKU got.
type DeleteAnswer struct {
	SKU      string `json:"sku"`
	State    string `json:"state" enum:"deleted,closed" doc:"closed: for sale, which is not persisted yet; delete it again."`
	Receipt  string `json:"receipt,omitempty" doc:"Of its being closed for sale; absent when it was deleted before."`
	Replayed bool   `json:"replayed" doc:"True when it was deleted before this call."`
}
