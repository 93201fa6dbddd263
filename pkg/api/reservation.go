package api

// Levels of acknowledgement: how far an acceptance got before the answer was sent.
const (
	Memory    = "memory"    // Redis has it; a lost Redis host may lose it, which its receipt then reports
	Persisted = "persisted" // committed in Postgres
)

// A Line is one SKU of an order. The same SKU on several lines is summed.
type Line struct {
	SKU      string `json:"sku" minLength:"1" maxLength:"64" doc:"Any UTF-8 text of 1 to 64 bytes; case counts."`
	Quantity int64  `json:"quantity" minimum:"1" maximum:"1000000" doc:"Whole units."`
}

// A Result is what shall stand of one SKU of an order. A result and not a difference, so that a repeat changes nothing.
type Result struct {
	SKU      string `json:"sku" minLength:"1" maxLength:"64" doc:"A SKU of the order."`
	Quantity int64  `json:"quantity" minimum:"0" maximum:"1000000" doc:"Whole units, at most what stands."`
}

// An OrderLine is one SKU of an order as it stands.
type OrderLine struct {
	SKU       string `json:"sku"`
	Asked     int64  `json:"asked" doc:"When it was reserved; 0 when only a replace brought it."`
	Quantity  int64  `json:"quantity" doc:"Held or committed now; of an ended order what it gave back last."`
	Fulfilled int64  `json:"fulfilled,omitempty" doc:"Shipped."`
}

// A ReserveRequest asks for a reservation (or, with Sale, for a confirmed order at once).
type ReserveRequest struct {
	OrderID string `json:"order_id" minLength:"1" maxLength:"64" pattern:"^[A-Za-z0-9._:-]+$" doc:"Made by the caller before it sends, as a string; sent again it answers the same reservation."`
	Attempt int64  `json:"attempt,omitempty" minimum:"1" maximum:"999999999" default:"1" doc:"An ended order takes stock again only as its next attempt."`
	Buyer   string `json:"buyer,omitempty" maxLength:"64" pattern:"^[A-Za-z0-9._:@+-]*$" doc:"A part of what makes two requests equal. A SKU with a limit per buyer needs it."`
	Lines   []Line `json:"lines" minItems:"1" maxItems:"1500" doc:"All of them are taken, or none. A producer takes at most its --max-lines (500 unless told otherwise)."`
	TTL     int64  `json:"ttl,omitempty" minimum:"1" maximum:"86400" default:"900" doc:"How long units are held, in whole seconds. Not with sale."`
	Sale    bool   `json:"sale,omitempty" doc:"Reserve and confirm in one step."`
	Ack     string `json:"ack,omitempty" enum:"memory,persisted" doc:"The level to wait for: memory unless told otherwise, persisted for a sale."`
	Policy  string `json:"policy,omitempty" enum:"all,partial" default:"all" doc:"What to do when a line is short: all takes nothing then, partial takes what is there of each line, and the answer says so. Nothing at all there is sold_out."`
}

// An AttemptRequest is the body of confirm and release; no body means its defaults. Nil Lines mean the whole order.
type AttemptRequest struct {
	Attempt int64  `json:"attempt,omitempty" minimum:"1" maximum:"999999999" default:"1" doc:"The attempt that is meant, so that an old call cannot end a newer hold."`
	Ack     string `json:"ack,omitempty" enum:"memory,persisted" doc:"The level to wait for: persisted for confirm, memory for release, unless told otherwise."`

	Lines []Result `json:"lines,omitzero" minItems:"1" maxItems:"1500" nullable:"false" doc:"What shall stand of the lines named, each SKU once; absent means the whole order. Confirm gives the rest back, lines that are not named included; release leaves those as they are."`
}

// A ReplaceRequest gives a hold other lines.
type ReplaceRequest struct {
	Attempt int64  `json:"attempt,omitempty" minimum:"1" maximum:"999999999" default:"1" doc:"The attempt that is meant."`
	Lines   []Line `json:"lines" minItems:"1" maxItems:"1500" doc:"The order as it shall stand: all of it is had, or nothing changes. Its own units count as available."`
	Ack     string `json:"ack,omitempty" enum:"memory,persisted" default:"memory" doc:"The level to wait for."`
}

// An ExtendRequest lengthens a hold: exactly one of TTL and Until.
type ExtendRequest struct {
	Attempt int64  `json:"attempt,omitempty" minimum:"1" maximum:"999999999" default:"1" doc:"The attempt that is meant."`
	TTL     int64  `json:"ttl,omitempty" minimum:"1" maximum:"86400" doc:"How long from now, in whole seconds."`
	Until   string `json:"until,omitempty" format:"date-time" doc:"Until when, RFC 3339, at most 24 h from now. A repeat of it changes nothing, so prefer it where one is needed."`
	Ack     string `json:"ack,omitempty" enum:"memory,persisted" default:"memory" doc:"The level to wait for."`
}

// A Reservation is how one attempt of an order stands.
type Reservation struct {
	OrderID   string      `json:"order_id" doc:"As it was sent."`
	Attempt   int64       `json:"attempt" doc:"The attempt that stands; a confirm after expiry is the next one."`
	State     string      `json:"state" enum:"held,confirmed,released,expired,cancelled,fulfilled" doc:"Where it stands."`
	Receipt   string      `json:"receipt" doc:"Of the last change: <shard>.<epoch>.<seq>.<index>. Ask with it whether it was persisted or lost."`
	Level     string      `json:"level" enum:"memory,persisted" doc:"The level that was reached before this answer."`
	ExpiresAt string      `json:"expires_at,omitempty" format:"date-time" doc:"When a hold ends at the earliest, RFC 3339 with milliseconds; absent when nothing expires."`
	Lines     []OrderLine `json:"lines" doc:"One line a SKU, as it stands now."`
	Replayed  bool        `json:"replayed" doc:"True when this was already so and nothing was changed."`
}

// IsPersisted reports whether the answer was sent after Postgres had committed it.
func (r *Reservation) IsPersisted() bool { return r.Level == Persisted }

// A BatchRequest asks for many reservations at once; each stands for itself.
type BatchRequest struct {
	Reservations []ReserveRequest `json:"reservations" minItems:"1" maxItems:"10000" doc:"Each is decided for itself, in no order."`
}

// A BatchAnswer has one result for each reservation asked for, in the order of the request.
type BatchAnswer struct {
	Results []BatchResult `json:"results"`
}

// A BatchResult is what the single call would have answered.
type BatchResult struct {
	Status      int          `json:"status" doc:"The HTTP status that the single call would have had."`
	Reservation *Reservation `json:"reservation,omitempty" doc:"Present when the status is below 300."`
	Problem     *Problem     `json:"problem,omitempty" doc:"Present otherwise."`
}
