// Package keep remembers what a kept folder is for, so that a demo that was interrupted goes on with the same file
// and the same stores, and refuses to mix two.
package keep

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const (
	name      = "demo.json"
	version   = 1
	mostBytes = 1 << 16
)

// A State is what one kept folder is for.
type State struct {
	Version  int    `json:"version"`
	Orders   string `json:"orders,omitempty"` // SHA-256 of the order file that is replayed; empty: sales are played
	File     string `json:"file,omitempty"`   // its name, for people
	Shards   int    `json:"shards"`
	Runs     int    `json:"runs"`            // that were begun
	Prefix   string `json:"prefix"`          // of the keys in Redis
	Database string `json:"database"`        // in Postgres
	Redis    string `json:"redis,omitempty"` // address of a server of the user; empty: private
	Postgres string `json:"postgres,omitempty"`
}

// Resumed says whether an earlier run began.
func (s State) Resumed() bool { return s.Runs > 1 }

// Begin reads what a folder is for, or decides it, and writes down that a run begins. Everything asked for must be
// as it was. The file is replaced as a whole: a run that is killed leaves the old one or the new one.
func Begin(folder string, asked State) (State, error) {
	path := filepath.Join(folder, name)
	state, err := read(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		state = asked
		state.Version, state.Runs = version, 0
		state.name()
	case err != nil:
		return State{}, err
	default:
		if err := state.matches(folder, asked); err != nil {
			return State{}, err
		}
	}
	state.Runs++
	if err := state.write(path); err != nil {
		return State{}, fmt.Errorf("write down what %s is for: %w", folder, err)
	}
	return state, nil
}

// name gives the stores their names: plain ones on private servers, unique ones where others may live.
func (s *State) name() {
	s.Prefix, s.Database = "sp", "stockpipe"
	if s.Redis == "" && s.Postgres == "" {
		return
	}
	var chance [4]byte
	_, _ = rand.Read(chance[:]) // never fails
	s.Prefix, s.Database = "demo-"+hex.EncodeToString(chance[:]), "stockpipe_demo_"+hex.EncodeToString(chance[:])
}

func read(path string) (State, error) {
	info, err := os.Stat(path)
	if err != nil {
		return State{}, err
	}
	if info.Size() > mostBytes {
		return State{}, fmt.Errorf("%s has %d bytes and is not ours: name another folder", path, info.Size())
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return State{}, err
	}
	var s State
	if err := json.Unmarshal(text, &s); err != nil {
		return State{}, fmt.Errorf("%s is unreadable (%w): name another folder", path, err)
	}
	if s.Version != version {
		return State{}, fmt.Errorf("%s was written by another version of the demo (%d, this one has %d): name another folder", path, s.Version, version)
	}
	return s, nil
}

// matches refuses to go on with something else.
func (s State) matches(folder string, asked State) error {
	switch {
	case s.Orders != "" && asked.Orders == "":
		return fmt.Errorf("%s keeps the replay of %s: go on with --orders %s, or name another folder", folder, s.File, s.File)
	case s.Orders == "" && asked.Orders != "":
		return fmt.Errorf("%s keeps a sale, not a replay: name another folder for %s", folder, asked.File)
	case s.Orders != asked.Orders:
		return fmt.Errorf("%s keeps the replay of %s (SHA-256 %.12s…), and %s is another file (%.12s…): go on with that one, or name another folder",
			folder, s.File, s.Orders, asked.File, asked.Orders)
	case s.Shards != asked.Shards:
		return fmt.Errorf("%s has %d shards: go on with --shards %d, or name another folder", folder, s.Shards, s.Shards)
	case s.Redis != asked.Redis || s.Postgres != asked.Postgres:
		return fmt.Errorf("%s was begun with other servers (Redis %s, Postgres %s): go on with those, or name another folder",
			folder, private(s.Redis), private(s.Postgres))
	}
	return nil
}

func private(address string) string {
	if address == "" {
		return "private"
	}
	return address
}

func (s State) write(path string) error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(path), name+".*")
	if err != nil {
		return err
	}
	_, err = file.Write(append(text, '\n'))
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}
