package api

import (
	"context"
	"net/http"
)

// Create makes a SKU with its opening stock; the same opening again changes nothing.
func (c *Client) Create(ctx context.Context, sku string, request OpeningRequest) (Document, error) {
	return send[Document](ctx, c, http.MethodPut, stockPath(sku, ""), request)
}

// Stock asks for the quantities of a SKU in both stores, and how it is set.
func (c *Client) Stock(ctx context.Context, sku string) (Stock, error) {
	return send[Stock](ctx, c, http.MethodGet, stockPath(sku, ""), nil)
}

// Configure changes settings of a SKU; what the request leaves out stays. A Hint in the answer says what is still to
// come before the SKU sells.
func (c *Client) Configure(ctx context.Context, sku string, request SettingsRequest) (SettingsAnswer, error) {
	return send[SettingsAnswer](ctx, c, http.MethodPatch, stockPath(sku, ""), request)
}

// Delete closes a SKU for sale and frees its text. Deleting what is deleted changes nothing; an answer that says closed
// is not done yet: send it again.
func (c *Client) Delete(ctx context.Context, sku string) (DeleteAnswer, error) {
	return send[DeleteAnswer](ctx, c, http.MethodDelete, stockPath(sku, ""), nil)
}

// Receive brings goods in. An empty DocumentID is filled in, in the caller's own value.
func (c *Client) Receive(ctx context.Context, sku string, request *ReceiveRequest) (Document, error) {
	fill(&request.DocumentID)
	return send[Document](ctx, c, http.MethodPost, stockPath(sku, "/receive"), request)
}

// Adjust corrects the available units. An empty DocumentID is filled in, in the caller's own value.
func (c *Client) Adjust(ctx context.Context, sku string, request *AdjustRequest) (Document, error) {
	fill(&request.DocumentID)
	return send[Document](ctx, c, http.MethodPost, stockPath(sku, "/adjust"), request)
}

// Count posts a stocktake. An empty DocumentID is filled in, in the caller's own value.
func (c *Client) Count(ctx context.Context, sku string, request *CountRequest) (Document, error) {
	fill(&request.DocumentID)
	return send[Document](ctx, c, http.MethodPost, stockPath(sku, "/count"), request)
}

// TakeBack takes units back that belong to no known order. An empty DocumentID is filled in, in the caller's own value.
func (c *Client) TakeBack(ctx context.Context, sku string, request *StockReturnRequest) (Document, error) {
	fill(&request.DocumentID)
	return send[Document](ctx, c, http.MethodPost, stockPath(sku, "/return"), request)
}
