// Package tidy holds the tests about the code itself: which room a package
// lives in, who may import whom, what things may be called, how long a file may
// grow, and whether the pages still match the code. It has no code to call;
// `go test ./pkg/tidy` is all it does.
//
// The whole plan of the house is two tables in rooms_test.go: every package and
// its layer, and what each layer may know and why. A new package needs one line
// there. Every check is also fed things that break it, because a check that
// cannot fail protects nobody.
package tidy
