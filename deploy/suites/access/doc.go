// Package access runs the real programs as an operator is told to run them: as the users of deploy/access, behind
// tokens and TLS, and through a pooler. It is not the place for the rules themselves, which are shown beside their
// code: pkg/access, pkg/service, pkg/ledger.
package access
