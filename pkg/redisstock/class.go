package redisstock

import (
	"errors"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"
)

// A class is what one failed call means for its callers.
type class struct {
	reason  string // one word for the answer and the metrics
	unknown bool   // it may have been executed
	doubt   bool   // worth a look by the reconciler
	reread  bool   // worth reading the epoch again
	known   bool   // false: counted as unclassified
}

// replyClasses are the library's own refusals. Nothing was written.
var replyClasses = map[string]class{
	"MISSING": {reason: "missing", doubt: true, known: true},
	"EPOCH":   {reason: "epoch", reread: true, known: true},
	"VERSION": {reason: "version", reread: true, known: true},
	"CLOSED":  {reason: "rebuilding", doubt: true, known: true},
	"FENCED":  {reason: "fenced", doubt: true, known: true},
	"TORN":    {reason: "torn", doubt: true, known: true},
	"REWOUND": {reason: "rewound", doubt: true, known: true},
	"LATE":    {reason: "late", known: true},
	"BAD":     {reason: "bad_call"},
}

// errorClasses are Redis' own refusals, by the first word of the error. Nothing was written.
var errorClasses = map[string]class{
	"OOM":         {reason: "memory", known: true},
	"LOADING":     {reason: "loading", known: true},
	"READONLY":    {reason: "replica", doubt: true, known: true},
	"MASTERDOWN":  {reason: "replica", known: true},
	"MISCONF":     {reason: "disk", known: true},
	"BUSY":        {reason: "busy", known: true},
	"CLUSTERDOWN": {reason: "cluster", known: true},
	"NOREPLICAS":  {reason: "replicas", known: true},
	"MOVED":       {reason: "moving", known: true},
	"ASK":         {reason: "moving", known: true},
	"TRYAGAIN":    {reason: "moving", known: true},
	"NOAUTH":      {reason: "access", known: true},
	"WRONGPASS":   {reason: "access", known: true},
	"NOPERM":      {reason: "access", known: true},
	"WRONGTYPE":   {reason: "torn", doubt: true, known: true},
}

// classify tells what the error of a call means. A server's error is judged by its first word, the only part
// of it that Redis keeps stable.
func classify(err error) class {
	var server redis.Error
	if !errors.As(err, &server) {
		return classifyNetwork(err)
	}
	text := server.Error()
	word, _, _ := strings.Cut(text, " ")
	if c, ok := errorClasses[word]; ok {
		return c
	}
	switch {
	case strings.Contains(text, "Function not found"):
		return class{reason: "fenced", doubt: true, known: true}
	case strings.Contains(text, "XADD"):
		return class{reason: "torn", doubt: true, known: true}
	case word == "UNKILLABLE" || word == "NOTBUSY":
		return errorClasses["BUSY"]
	}
	return class{reason: "error"}
}

func classifyNetwork(err error) class {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" || errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrClosed) {
		return class{reason: "unreachable", known: true} // nothing was sent
	}
	return class{reason: "unknown", unknown: true, known: true}
}
