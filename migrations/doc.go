// Package migrations holds the SQL schema of the ledger and brings a database to it. A migration that has
// shipped is never edited: what changes the schema is a new file with the next number.
//
// It is not the place for queries (package ledger) or for data.
package migrations
