// Package server is the producer's HTTP side: it reads strict JSON into the words of package order, calls a Clerk,
// and writes answers and problems. It decides nothing: every rule about stock is behind the Clerk.
//
// One table (routes) names every route, its handler and its description; one table (kinds) every problem code with
// its status. The OpenAPI description at /v1/openapi.json is built from both and from the types of pkg/api.
package server
