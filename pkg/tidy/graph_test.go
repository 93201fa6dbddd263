package tidy

import (
	"fmt"
	"slices"
	"strings"
)

// module is the import path that the rooms are relative to.
const module = "github.com/stockpipe/stockpipe"

// An edge is one import. Both ends inside the module are written relative to
// it (pkg/stock); anything else keeps its full import path.
type edge struct {
	from, to string
	test     bool // the import stands in a _test.go file
}

// A breach is an edge, or a package, that breaks a rule.
type breach struct {
	rule string
	text string
}

// breaches judges an import graph by the tables of rooms_test.go.
func breaches(packages []string, edges []edge) []breach {
	var found []breach
	for _, p := range packages {
		if _, ok := roomOf(p); !ok {
			found = append(found, breach{"room", fmt.Sprintf(
				"%s is in no room: give it a line in the table `rooms` of pkg/tidy, with its layer", p)})
		}
	}
	known := map[string][]string{} // package → rooms of the adapters that it imports
	for _, e := range edges {
		found = append(found, bansBroken(e)...)
		if e.test {
			continue
		}
		found = append(found, lawsBroken(e)...)
		if r, ok := roomOf(e.to); ok && r.layer == adapters && !slices.Contains(known[e.from], r.path) {
			known[e.from] = append(known[e.from], r.path)
		}
	}
	return append(found, adaptersJoined(known)...)
}

func bansBroken(e edge) []breach {
	var found []breach
	for _, b := range bans {
		if (b.tests || !e.test) && b.broken(e.from, e.to) {
			found = append(found, breach{b.name, fmt.Sprintf("%s imports %s (%s): %s", e.from, e.to, b.name, b.why)})
		}
	}
	return found
}

func lawsBroken(e edge) []breach {
	from, ok := roomOf(e.from)
	if !ok {
		return nil // already reported as a package without a room
	}
	l := lawOf(from.layer)
	to, inside := roomOf(e.to)
	switch {
	case inside && from.path == to.path && from.layer == to.layer:
		return nil
	case inside && !slices.Contains(l.knows, to.layer):
		return []breach{{"law of " + string(l.layer), fmt.Sprintf(
			"%s (%s) imports %s (%s): %s", e.from, from.layer, e.to, to.layer, l.why)}}
	case !inside && isForeign(e.to) && !l.foreign:
		return []breach{{"foreign to " + string(l.layer), fmt.Sprintf(
			"%s (%s) imports the module %s: %s", e.from, from.layer, e.to, l.why)}}
	}
	return nil
}

func adaptersJoined(known map[string][]string) []breach {
	var found []breach
	for from, rooms := range known {
		r, ok := roomOf(from)
		if !ok {
			continue
		}
		l := lawOf(r.layer)
		// Layers that may know no adapter at all were reported edge by edge.
		if l.adapters > 0 && len(rooms) > l.adapters {
			slices.Sort(rooms)
			found = append(found, breach{"adapters of " + string(l.layer), fmt.Sprintf(
				"%s (%s) knows %d adapters (%s), at most %d: %s",
				from, r.layer, len(rooms), strings.Join(rooms, ", "), l.adapters, l.why)})
		}
	}
	return found
}

// roomOf finds the room of a path relative to the module.
func roomOf(path string) (room, bool) {
	for _, r := range rooms {
		if r.path == path {
			return r, true
		}
	}
	if strings.HasSuffix(path, "test") && (top(path) == "pkg" || isRole(top(path)) || top(path) == "deploy") {
		return room{path: "*test", layer: kits, holds: "test kit"}, true
	}
	var best room
	for _, r := range rooms {
		base, deep := strings.CutSuffix(r.path, "/...")
		fits := path == base || deep && strings.HasPrefix(path, base+"/")
		if fits && len(r.path) > len(best.path) {
			best = r
		}
	}
	return best, best.path != ""
}

func layerOf(path string) layer {
	r, _ := roomOf(path)
	return r.layer
}

func lawOf(name layer) law {
	for _, l := range laws {
		if l.layer == name {
			return l
		}
	}
	panic("layer without a law: " + string(name))
}

func top(path string) string {
	first, _, _ := strings.Cut(path, "/")
	return first
}

func isRole(name string) bool { return slices.Contains(roles, name) }

// isTestCode is true for packages that no shipped program contains.
func isTestCode(path string) bool {
	l := layerOf(path)
	return l == kits || l == suites
}

// isForeign tells a module of others from the standard library: only the
// former has a dot in its first element.
func isForeign(path string) bool { return strings.Contains(top(path), ".") }

// within is true for each of the roots and what lies below it.
func within(path string, roots []string) bool {
	return slices.ContainsFunc(roots, func(root string) bool {
		return path == root || strings.HasPrefix(path, root+"/")
	})
}
