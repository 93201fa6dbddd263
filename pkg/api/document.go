package api

// An AmendRequest ships units of a confirmed order (fulfil), or takes the sale of them back (cancel).
type AmendRequest struct {
	DocumentID string `json:"document_id" minLength:"1" maxLength:"64" pattern:"^[A-Za-z0-9._:-]+$" doc:"Unique for ever; sent again it answers the original outcome and moves nothing."`
	Attempt    int64  `json:"attempt,omitempty" minimum:"1" maximum:"999999999" doc:"The attempt that is meant; absent means the newest."`
	Lines      []Line `json:"lines,omitzero" minItems:"1" maxItems:"1500" nullable:"false" doc:"Units of this document, not what shall stand; absent means all that is left of the order."`
	Reason     string `json:"reason,omitempty" maxLength:"32" pattern:"^[A-Za-z0-9._-]+$" doc:"A code for reports: shipped or cancelled unless told otherwise."`
	Note       string `json:"note,omitempty" maxLength:"1024" doc:"Free text; it never leaves Postgres."`
	Ack        string `json:"ack,omitempty" enum:"memory,persisted" default:"persisted" doc:"The level to wait for."`
}

// A ReturnRequest takes shipped units of an order back.
type ReturnRequest struct {
	DocumentID string `json:"document_id" minLength:"1" maxLength:"64" pattern:"^[A-Za-z0-9._:-]+$" doc:"Unique for ever; sent again it answers the original outcome and moves nothing."`
	Attempt    int64  `json:"attempt,omitempty" minimum:"1" maximum:"999999999" doc:"The attempt that is meant; absent means the newest."`
	Lines      []Line `json:"lines,omitzero" minItems:"1" maxItems:"1500" nullable:"false" doc:"Units of this document; absent means all that was shipped and is not back."`
	Scrap      bool   `json:"scrap,omitempty" doc:"They are not for sale: it is recorded, and nothing moves."`
	Reason     string `json:"reason,omitempty" maxLength:"32" pattern:"^[A-Za-z0-9._-]+$" default:"returned" doc:"A code for reports."`
	Note       string `json:"note,omitempty" maxLength:"1024" doc:"Free text; it never leaves Postgres."`
	Ack        string `json:"ack,omitempty" enum:"memory,persisted" default:"persisted" doc:"The level to wait for."`
}

// A Document is what became of a movement of stock.
type Document struct {
	DocumentID string `json:"document_id,omitempty" doc:"As it was sent; absent for an opening."`
	Kind       string `json:"kind" enum:"opening,receive,adjust,count,return,fulfil,cancel"`
	SKU        string `json:"sku,omitempty" doc:"Absent when it is about an order: lines has its SKUs."`
	Quantity   int64  `json:"quantity" doc:"Signed units; of a count what it corrects; of an order's document the sum of its lines."`
	Counted    *int64 `json:"counted,omitempty" doc:"Of a count."`
	OrderID    string `json:"order_id,omitempty" doc:"The order that it is about."`
	Attempt    int64  `json:"attempt,omitempty" doc:"Of that order; absent where nobody named it and Redis had forgotten the order."`
	Lines      []Line `json:"lines,omitempty" doc:"Units of each SKU of the order."`
	Scrap      bool   `json:"scrap,omitempty" doc:"Of a return: the units are not for sale."`
	Reason     string `json:"reason,omitempty"`
	State      string `json:"state" enum:"written,applied,refused" doc:"written: in Postgres and not yet decided; the other two are final once the level is persisted."`
	Receipt    string `json:"receipt,omitempty" doc:"Of its entry, once it has one."`
	Level      string `json:"level,omitempty" enum:"memory,persisted" doc:"The level that its outcome has reached; absent while it has none."`
	Replayed   bool   `json:"replayed" doc:"True when the outcome was known before this call."`
}
