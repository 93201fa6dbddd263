package config

import (
	"os"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Log says what a process writes to stderr. Embed it with `embed:"" prefix:"log-"`.
type Log struct {
	Level  string `name:"level" enum:"debug,info,warn,error" default:"info" help:"Least level that is written: debug, info, warn or error."`
	Format string `name:"format" enum:"json,console" default:"json" help:"json for machines, console for people."`
}

// Logger writes to stderr, one line an event, the time as ISO 8601, without callers and stacks: a message names
// its place in words. Every line carries the role. Nothing is sampled: loops keep their own rates.
func (l Log) Logger(role string) *zap.Logger {
	settings := zap.NewProductionEncoderConfig()
	settings.EncodeTime = zapcore.ISO8601TimeEncoder
	settings.TimeKey = "time"
	encoder := zapcore.NewJSONEncoder(settings)
	if l.Format == "console" {
		settings.EncodeLevel = zapcore.CapitalLevelEncoder
		encoder = zapcore.NewConsoleEncoder(settings)
	}
	level, err := zapcore.ParseLevel(l.Level)
	if err != nil { // only a Log that was never validated: say too much rather than too little
		level = zapcore.DebugLevel
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(os.Stderr), level), zap.ErrorOutput(zapcore.Lock(os.Stderr))).
		With(zap.String("role", role))
}
