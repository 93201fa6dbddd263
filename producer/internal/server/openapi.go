package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"

	"github.com/stockpipe/stockpipe/pkg/api"
)

// everywhere are the problems that any route may answer; with a body come those of bodies.
var (
	everywhere = []string{api.CodeUnauthorized, api.CodeForbidden, api.CodeInvalid, api.CodeInternal}
	ofBodies   = []string{api.CodeMalformed, api.CodeTooLarge, api.CodeMediaType}
)

func (s *Server) openapi(w http.ResponseWriter, _ *http.Request, _ string) int {
	return writeBytes(w, http.StatusOK, s.spec)
}

// spec is the same for every producer: it is written once.
var spec = sync.OnceValues(buildSpec)

// buildSpec writes the description from the routes, the problem codes and the types of pkg/api. Nothing in it is
// fetched from elsewhere.
func buildSpec() ([]byte, error) {
	schemas := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	doc := &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{
			Title: "stockpipe producer", Version: "1",
			Description: "Reservations of stock. Every call may be sent again: order ids and document ids make it idempotent. JSON is strict: unknown fields, duplicate names, fractions and trailing data are refused, and nothing is written then. Bodies may have 64 KiB and 128 bytes for every line that an order may have (--max-lines), bulk requests 4 MiB. SKUs in paths are percent-encoded (a slash is %2F).",
		},
		Paths:      map[string]*huma.PathItem{},
		Components: &huma.Components{Schemas: schemas, SecuritySchemes: securitySchemes()},
	}
	for i := range routes {
		rt := &routes[i]
		path := doc.Paths[rt.path]
		if path == nil {
			path = &huma.PathItem{}
			doc.Paths[rt.path] = path
		}
		op := describe(rt, schemas)
		switch rt.method {
		case http.MethodGet:
			path.Get = op
		case http.MethodPut:
			path.Put = op
		case http.MethodPost:
			path.Post = op
		case http.MethodPatch:
			path.Patch = op
		case http.MethodDelete:
			path.Delete = op
		default:
			return nil, fmt.Errorf("route %s has the method %s, which the description does not know", rt.path, rt.method)
		}
	}
	return json.MarshalIndent(doc, "", " ")
}

func describe(rt *route, schemas huma.Registry) *huma.Operation {
	op := &huma.Operation{
		OperationID: rt.name, Summary: rt.summary, Description: rt.detail, Security: security(rt),
		Parameters: parameters(rt), Responses: map[string]*huma.Response{},
	}
	codes := append(slices.Clone(rt.codes), everywhere...)
	if rt.request != nil {
		codes = append(codes, ofBodies...)
		_, optional := rt.request.(api.AttemptRequest)
		op.RequestBody = &huma.RequestBody{
			Required: !optional,
			Content:  map[string]*huma.MediaType{jsonMedia: {Schema: schemas.Schema(bodyType(rt.request), true, "")}},
		}
	}
	for _, status := range rt.status {
		r := &huma.Response{Description: http.StatusText(status), Content: map[string]*huma.MediaType{jsonMedia: {}}}
		if rt.answer != nil {
			r.Content[jsonMedia].Schema = schemas.Schema(bodyType(rt.answer), true, "")
		}
		op.Responses[strconv.Itoa(status)] = r
	}
	refusals := map[int][]string{}
	for _, code := range codes {
		refusals[kinds[code].status] = append(refusals[kinds[code].status], code)
	}
	for status, codes := range refusals {
		r := &huma.Response{
			Description: "code: " + strings.Join(codes, ", "),
			Content:     map[string]*huma.MediaType{"application/problem+json": {Schema: schemas.Schema(bodyType(api.Problem{}), true, "")}},
		}
		if status == http.StatusServiceUnavailable {
			r.Headers = map[string]*huma.Param{"Retry-After": {Description: "Seconds after which to ask again.", Schema: &huma.Schema{Type: huma.TypeInteger}}}
		}
		op.Responses[strconv.Itoa(status)] = r
	}
	return op
}

func parameters(rt *route) []*huma.Param {
	var out []*huma.Param
	_, rest, ok := strings.Cut(rt.path, "{")
	if ok {
		name, _, _ := strings.Cut(rest, "}")
		p := &huma.Param{Name: name, In: "path", Required: true, Schema: &huma.Schema{Type: huma.TypeString}}
		if name == "sku" {
			p.Description = "The SKU, percent-encoded: any UTF-8 text of 1 to 64 bytes."
		} else {
			p.Description = "The order id: 1 to 64 of A-Z a-z 0-9 . _ : -"
		}
		out = append(out, p)
	}
	if rt.name == "order" {
		out = append(out, &huma.Param{Name: "receipt", In: "query", Description: "A receipt to judge; without it, that of the newest match.", Schema: &huma.Schema{Type: huma.TypeString}})
	}
	return out
}
