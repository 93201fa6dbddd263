// Package api holds what travels over HTTP between a shop and a producer: the JSON types of /v1 and a Go client
// that makes order ids, retries safely and understands receipts.
//
// It knows nothing of Redis, Postgres or the server: a shop can import it alone. The same types are the source of
// the OpenAPI description that a producer serves at /v1/openapi.json; their doc tags are its prose.
package api
