package redisstock

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// LibraryVersion is the newest version of the function library that this build carries. To make another one, copy
// the files of library/ to library/previous/, change this number, and in library/ the number in every name and in
// VERSION: so producers of both builds sell side by side, before and after the takeover that changes the version.
const LibraryVersion = 1

// Previous texts lie in library/previous/, if there are any.
//
//go:embed library
var libraryFiles embed.FS

// functions are the names of one version's functions. They are all that a caller needs who does not load the text.
type functions struct{ apply, settle, forget, fence, put, drop, open, status string }

// functionsOf is cheap to ask for any of the versions that this build carries.
func functionsOf(version int) functions {
	switch version {
	case LibraryVersion:
		return newest
	case LibraryVersion - 1:
		return previous
	}
	return named(version)
}

var newest, previous = named(LibraryVersion), named(LibraryVersion - 1)

func named(version int) functions {
	name := libraryName(version)
	return functions{name + "_apply", name + "_settle", name + "_forget", name + "_fence", name + "_put", name + "_drop", name + "_open", name + "_status"}
}

func libraryName(version int) string { return fmt.Sprintf("stockpipe_%d", version) }

// Libraries are the versions that this build carries, the newest first.
func Libraries() []int64 {
	if _, carried := LibraryText(LibraryVersion - 1); carried {
		return []int64{LibraryVersion, LibraryVersion - 1}
	}
	return []int64{LibraryVersion}
}

// Library is the text of the newest version.
func Library() string {
	text, _ := LibraryText(LibraryVersion)
	return text
}

// LibraryText is the text of a version: the files of its folder in the order of their names. False means that this
// build does not carry it.
func LibraryText(version int) (string, bool) {
	switch version {
	case LibraryVersion:
		return newestText(), true
	case LibraryVersion - 1:
		text := previousText()
		return text, text != ""
	}
	return "", false
}

var (
	newestText   = sync.OnceValue(func() string { return textOf("library") })
	previousText = sync.OnceValue(func() string { return textOf("library/previous") })
)

// textOf joins the files of a folder; no folder is no text.
func textOf(folder string) string {
	entries, err := libraryFiles.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	if err != nil {
		panic(err) // the files are part of the binary
	}
	var text strings.Builder
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		part, err := libraryFiles.ReadFile(folder + "/" + e.Name())
		if err != nil {
			panic(err)
		}
		text.Write(part)
	}
	return text.String()
}

// A LibraryError says that a server has no library, or another text under our name, or that this build does not
// carry the version that is asked for.
type LibraryError struct {
	Version int
	Missing bool
	Unknown bool // to this build
}

func (e *LibraryError) Error() string {
	name := libraryName(e.Version)
	switch {
	case e.Unknown:
		return fmt.Sprintf("this build carries the function library in versions %v, not %d: use a build that does", Libraries(), e.Version)
	case e.Missing:
		return "the function library " + name + " is not loaded: the reconciler's next takeover loads it (stockpipe-reconciler serve, or --once)"
	}
	return "the function library " + name + " on this server has another text: end its users, then FUNCTION DELETE " + name + " and let the reconciler take over"
}

// CheckLibrary compares a version of the library on the server with this build's. The error is a *LibraryError, or
// Redis'.
func CheckLibrary(ctx context.Context, rdb redis.Cmdable, version int) error {
	text, carried := LibraryText(version)
	if !carried {
		return &LibraryError{Version: version, Unknown: true}
	}
	libraries, err := rdb.FunctionList(ctx, redis.FunctionListQuery{LibraryNamePattern: libraryName(version), WithCode: true}).Result()
	if err != nil {
		return fmt.Errorf("list the functions of Redis: %w", err)
	}
	if len(libraries) == 0 {
		return &LibraryError{Version: version, Missing: true}
	}
	if libraries[0].Code != text {
		return &LibraryError{Version: version}
	}
	return nil
}

// LoadLibrary loads a version of the library beside whatever else is there. It never replaces: REPLACE would close
// every shard that was opened on this server. Only a takeover calls it. The error is a *LibraryError when another
// text is loaded under our name or this build does not carry the version, or Redis'.
func LoadLibrary(ctx context.Context, rdb redis.Cmdable, version int) error {
	err := CheckLibrary(ctx, rdb, version)
	if missing, ok := err.(*LibraryError); !ok || !missing.Missing { //nolint:errorlint // CheckLibrary returns it bare
		return err
	}
	text, _ := LibraryText(version)
	if err := rdb.FunctionLoad(ctx, text).Err(); err != nil {
		if CheckLibrary(ctx, rdb, version) == nil {
			return nil // somebody else loaded the same text meanwhile
		}
		return fmt.Errorf("load the function library: %w", err)
	}
	return nil
}
