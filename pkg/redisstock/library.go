package redisstock

import (
	"context"
	"embed"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// LibraryVersion is the version of the function library that this build carries and speaks.
const LibraryVersion = 1

const libraryName = "stockpipe_1"

// Names of the library's functions.
const (
	fnApply  = "stockpipe_1_apply"
	fnSettle = "stockpipe_1_settle"
	fnFence  = "stockpipe_1_fence"
	fnPut    = "stockpipe_1_put"
	fnOpen   = "stockpipe_1_open"
	fnStatus = "stockpipe_1_status"
)

//go:embed library/*.lua
var libraryFiles embed.FS

// Library is the text of the function library: the files of library/ in the order of their names.
func Library() string {
	entries, err := libraryFiles.ReadDir("library")
	if err != nil {
		panic(err) // the files are part of the binary
	}
	var text strings.Builder
	for _, e := range entries {
		part, err := libraryFiles.ReadFile("library/" + e.Name())
		if err != nil {
			panic(err)
		}
		text.Write(part)
	}
	return text.String()
}

// A LibraryError says that a server has no library, or another text under our name.
type LibraryError struct {
	Missing bool // else: another text
}

func (e *LibraryError) Error() string {
	if e.Missing {
		return "the function library " + libraryName + " is not loaded: the reconciler's next takeover loads it (stockpipe-reconciler serve, or --once)"
	}
	return "the function library " + libraryName + " on this server has another text: end its users, then FUNCTION DELETE " + libraryName + " and let the reconciler take over"
}

// CheckLibrary compares the library on the server with this build's. The error is a *LibraryError, or Redis'.
func CheckLibrary(ctx context.Context, rdb redis.Cmdable) error {
	libraries, err := rdb.FunctionList(ctx, redis.FunctionListQuery{LibraryNamePattern: libraryName, WithCode: true}).Result()
	if err != nil {
		return fmt.Errorf("list the functions of Redis: %w", err)
	}
	if len(libraries) == 0 {
		return &LibraryError{Missing: true}
	}
	if libraries[0].Code != Library() {
		return &LibraryError{}
	}
	return nil
}

// LoadLibrary loads the library beside whatever else is there. It never replaces: REPLACE would close every
// shard that was opened on this server. Only a takeover calls it. The error is a *LibraryError when another
// text is loaded under our name, or Redis'.
func LoadLibrary(ctx context.Context, rdb redis.Cmdable) error {
	err := CheckLibrary(ctx, rdb)
	if missing, ok := err.(*LibraryError); !ok || !missing.Missing { //nolint:errorlint // CheckLibrary returns it bare
		return err
	}
	if err := rdb.FunctionLoad(ctx, Library()).Err(); err != nil {
		if CheckLibrary(ctx, rdb) == nil {
			return nil // somebody else loaded the same text meanwhile
		}
		return fmt.Errorf("load the function library: %w", err)
	}
	return nil
}
