// Package shoptest is a whole shop for the suites: a private Redis and Postgres, the three programs as real processes,
// callers over HTTP who write down what they were told, and the judgement of it. It also breaks things: roles that end
// or stop at a failpoint, replicas, standbys, clocks that jump, fields edited by hand. What a row promises stands in
// the suite that plays it, not here.
package shoptest
