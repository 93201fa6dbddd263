package server

import (
	"net/http"

	"github.com/stockpipe/stockpipe/pkg/api"
	"github.com/stockpipe/stockpipe/pkg/order"
	"github.com/stockpipe/stockpipe/pkg/stock"
)

// uncountedHint says what is still to come when a limit was switched on.
const uncountedHint = "what buyers have is not counted yet: orders of the SKU are answered 503 uncounted until a takeover of the shard has counted; the reconciler was told, an operator can start one (stockpipe-reconciler takeover)"

// configure answers 202 while the change is not as certain as was asked for, or its limit not counted.
func (s *Server) configure(w http.ResponseWriter, r *http.Request, arg string) int {
	sh := takeSheet()
	defer sh.giveBack()
	change, ack, err := stock.Kept, order.Level(""), s.stockBody(w, r, sh, arg)
	if err == nil {
		change, ack, err = sh.settingsBody()
	}
	if err != nil {
		return s.refuse(w, err)
	}
	ctx, cancel := working(r)
	defer cancel()
	set, err := s.clerk.Configure(ctx, arg, change, ack)
	if err != nil {
		return s.refuse(w, err)
	}
	s.observer.Outcome("configured")
	s.observer.Level(string(set.Level))
	answer := api.SettingsAnswer{
		SKU: set.SKU, Settings: settingsOf(&set.Settings), Receipt: receiptText(set.Receipt), Level: string(set.Level),
	}
	status := http.StatusOK
	if set.Uncounted {
		answer.Hint = uncountedHint
	}
	if set.Uncounted || ack == order.Persisted && set.Level != order.Persisted {
		status = http.StatusAccepted
	}
	return writeJSON(w, status, jsonMedia, answer)
}

// remove answers 202 while the SKU is only closed for sale.
func (s *Server) remove(w http.ResponseWriter, r *http.Request, arg string) int {
	ctx, cancel := working(r)
	defer cancel()
	d, err := s.clerk.Delete(ctx, arg)
	if err != nil {
		return s.refuse(w, err)
	}
	answer := api.DeleteAnswer{SKU: d.SKU, State: "deleted", Receipt: receiptText(d.Receipt), Replayed: d.Replayed}
	status := http.StatusOK
	if !d.Deleted {
		answer.State, status = "closed", http.StatusAccepted
	}
	s.observer.Outcome("sku_" + answer.State)
	return writeJSON(w, status, jsonMedia, answer)
}

func (sh *sheet) settingsBody() (change stock.Change, ack order.Level, err error) {
	change, ack = stock.Kept, order.Persisted
	err = sh.document(func(d *reader, name string) (err error) {
		switch name {
		case "opens_at":
			change.Opens, err = d.moment("opens_at")
		case "buyer_limit":
			change.Limit, err = d.whole("buyer_limit", 0, stock.MaxMovementQuantity)
		case "frozen":
			change.Frozen, err = d.turn("frozen")
		case "closed":
			change.Closed, err = d.turn("closed")
		case "ack":
			ack, err = d.level("ack")
		default:
			err = d.unknown(name, settingFields)
		}
		return err
	})
	return change, ack, err
}

// turn reads how a switch shall stand.
func (d *reader) turn(field string) (stock.Switch, error) {
	on, err := d.boolean(field)
	if on {
		return stock.On, err
	}
	return stock.Off, err
}
