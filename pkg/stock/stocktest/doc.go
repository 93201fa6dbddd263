// Package stocktest says what every strategy must do, in two forms that know no server: scenario tables as text
// (testdata/*.txt, read by Scripts and played by Play against a Shop), and a Model, the rules of the protocol as
// plain Go, for state machine tests.
//
// The Model was written from the rules and shares no code with event.Book or with a strategy, so that a mistake
// would have to be made twice to stay unseen. The tables are played against it first (Counter), then by each
// strategy's own tests against the real thing. Tests only; the package knows no adapter.
package stocktest
