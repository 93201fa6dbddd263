// Package event holds the grammar of stockpipe: how an operation, a log entry, a record and a SKU's field are
// written as text, and what an entry does to a shard's state (Book). One grammar and one parser serve Redis'
// records, the calls of the function library, the log and the ledger; decision 0001 has it as a table.
//
// Everything it writes is canonical: text that parses prints back as itself, byte for byte. It reads strictly:
// what it does not know is an UnreadableError, and a reader of the log halts on it instead of skipping.
package event
