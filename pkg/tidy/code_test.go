package tidy

import (
	"fmt"
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Longest files, in lines. Beyond that a reader loses the beginning; tests may
// be longer because tables are.
const (
	maxGoLines   = 600
	maxTestLines = 900
	maxLuaLines  = 600
)

var (
	// emptyPackages are names that say nothing, so that anything ends up there.
	emptyPackages = []string{"util", "utils", "common", "helper", "helpers", "models", "core", "manager"}
	// emptyFiles are named after a kind of code instead of a noun.
	emptyFiles = []string{"types", "type", "utils", "util", "interfaces", "interface", "helpers", "helper", "common"}

	// The words are put together here so that this file does not find itself.
	leftover = regexp.MustCompile(`\b(` + "TO" + `DO|FIX` + `ME|XX` + `X)\b`)

	// Folders of the machine that something was written on, and the hosts that
	// modules and packages are fetched from: both are somebody's settings.
	machinePath  = regexp.MustCompile(`(^|[^A-Za-z0-9_.\-])/(work|root|tmp/bash[^/\s]*)/`)
	registryHost = regexp.MustCompile(strings.Join([]string{
		`proxy\.golang` + `\.org`, `sum\.golang` + `\.org`, `goproxy\.` + `(io|cn)`, `registry\.npmjs` + `\.org`,
		`files\.pythonhosted` + `\.org`, `pypi` + `\.org`, `repo1?\.maven` + `\.`, `maven\.apache` + `\.org/maven2`,
		`registry-1\.docker` + `\.io`, `(deb|security)\.debian` + `\.org`, `static\.crates` + `\.io`,
	}, "|"))
)

func emptyNames(files []goFile) []string {
	var found []string
	for _, f := range files {
		name := strings.TrimSuffix(f.ast.Name.Name, "_test")
		folder := path.Base(f.dir())
		if slices.Contains(emptyPackages, name) || slices.Contains(emptyPackages, folder) || strings.HasSuffix(name, "util") {
			found = append(found, fmt.Sprintf("%s: package %s is named after nothing: name it after the noun it holds", f.path, name))
		}
		stem := strings.TrimSuffix(strings.TrimSuffix(f.base(), ".go"), "_test")
		if slices.Contains(emptyFiles, stem) {
			found = append(found, fmt.Sprintf("%s: name the file after the noun it holds", f.path))
		}
	}
	return found
}

func tooLong(files []source) []string {
	var found []string
	for _, f := range files {
		most := 0
		switch {
		case f.isGo() && f.isTest():
			most = maxTestLines
		case f.isGo():
			most = maxGoLines
		case strings.HasSuffix(f.path, ".lua"):
			most = maxLuaLines
		}
		if most > 0 && f.lines() > most {
			found = append(found, fmt.Sprintf("%s has %d lines, at most %d: find the second noun in it", f.path, f.lines(), most))
		}
	}
	return found
}

// sleepers finds uses of time.Sleep, called or passed on, under whatever name
// the file imports the package.
func sleepers(files []goFile) []string {
	var found []string
	for _, f := range files {
		name := localName(f.ast, "time")
		if f.sleepsFreely() || name == "" {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "Sleep" {
				if x, ok := sel.X.(*ast.Ident); ok && x.Name == name {
					found = append(found, fmt.Sprintf("%s sleeps: wait on a context, a channel or a timer that can be stopped", f.path))
				}
			}
			return true
		})
		if name == "." {
			found = append(found, fmt.Sprintf("%s imports time by a dot, which hides a sleep", f.path))
		}
	}
	return found
}

func localName(f *ast.File, importPath string) string {
	for _, spec := range f.Imports {
		if spec.Path.Value != `"`+importPath+`"` {
			continue
		}
		if spec.Name != nil {
			return spec.Name.Name
		}
		return path.Base(importPath)
	}
	return ""
}

func leftovers(files []source) []string {
	return matches(files, leftover, "is work left in the text: do it, or file it where work is planned")
}

func machinePaths(files []source) []string {
	return append(
		matches(files, machinePath, "is a folder of one machine: make it relative, or a setting"),
		matches(files, registryHost, "is a package registry: leave the choice to the settings of the tool that fetches")...)
}

func matches(files []source, pattern *regexp.Regexp, complaint string) []string {
	var found []string
	for _, f := range files {
		for n, line := range strings.Split(f.text, "\n") {
			if hit := pattern.FindString(line); hit != "" && !f.isFixture() {
				found = append(found, fmt.Sprintf("%s:%d: %q %s", f.path, n+1, strings.TrimSpace(hit), complaint))
			}
		}
	}
	return found
}

// silentPackages wants one package comment per package. It may stand in a test
// file only where there is nothing else.
func silentPackages(files []goFile) []string {
	type face struct{ name, comment string }
	faces := map[string]face{}
	for _, testFiles := range []bool{false, true} {
		for _, f := range files {
			seen, ok := faces[f.dir()]
			if f.isTest() != testFiles || ok && (testFiles || seen.comment != "") {
				continue
			}
			faces[f.dir()] = face{f.ast.Name.Name, f.ast.Doc.Text()}
		}
	}
	var found []string
	for dir, f := range faces {
		switch {
		case f.comment == "":
			found = append(found, fmt.Sprintf("%s has no package comment: say what it is for and what it is not", dir))
		case f.name != "main" && !strings.HasPrefix(f.comment, "Package "+f.name+" "):
			found = append(found, fmt.Sprintf("%s: the package comment must begin with %q", dir, "Package "+f.name))
		}
	}
	return found
}

func TestEveryCheckOfTheCodeCanFail(t *testing.T) {
	t.Parallel()
	const header = "// Package p is.\npackage p\n"
	cases := []struct {
		fact  string
		check func([]source) []string
		bad   source
		good  source
	}{
		{"a stranger at the top", strangers, source{"src/a.go", ""}, source{".env", ""}},
		{"an empty package name", parsed(t, emptyNames), source{"pkg/x/a.go", "package util\n"}, source{"pkg/x/a.go", header}},
		{"an empty folder name", parsed(t, emptyNames), source{"pkg/core/a.go", header}, source{"pkg/score/a.go", header}},
		{"a name with util behind", parsed(t, emptyNames), source{"pkg/x/a.go", "package redisutil\n"}, source{"pkg/x/a.go", header}},
		{"a file named types", parsed(t, emptyNames), source{"pkg/x/types.go", header}, source{"pkg/x/typeset.go", header}},
		{"a test file named helpers", parsed(t, emptyNames), source{"pkg/x/helpers_test.go", header}, source{"pkg/x/lease_test.go", header}},
		{"a long file", tooLong, source{"pkg/x/a.go", tall(601)}, source{"pkg/x/a.go", tall(600)}},
		{"a long test", tooLong, source{"pkg/x/a_test.go", tall(901)}, source{"pkg/x/a_test.go", tall(900)}},
		{"a long script", tooLong, source{"pkg/x/a.lua", tall(601)}, source{"pkg/x/a.lua", tall(600)}},
		{"a sleep", parsed(t, sleepers), source{"pkg/x/a.go", sleepy("", "time.Sleep(1)")}, source{"pkg/x/a_test.go", sleepy("", "time.Sleep(1)")}},
		{"a sleep passed on", parsed(t, sleepers), source{"pkg/x/a.go", sleepy("", "_ = time.Sleep")}, source{"pkg/x/xtest/a.go", sleepy("", "_ = time.Sleep")}},
		{"a sleep by another name", parsed(t, sleepers), source{"deploy/demo/a.go", sleepy("clock", "clock.Sleep(1)")}, source{"deploy/suites/e2e/a.go", sleepy("clock", "clock.Sleep(1)")}},
		{"a hidden sleep", parsed(t, sleepers), source{"pkg/x/a.go", sleepy(".", "Sleep(1)")}, source{"pkg/x/a.go", sleepy("", "_ = time.Second")}},
		{"work left", leftovers, source{"a.sql", "-- TO" + "DO later\n"}, source{"a.sh", "mktemp -d XX" + "XXXX\n"}},
		{"a machine path", machinePaths, source{"a.yml", "dir: /wo" + "rk/main\n"}, source{"a.yml", "dir: net/work/main\n"}},
		{"a home folder", machinePaths, source{"a.md", "see `/ro" + "ot/x`\n"}, source{"a.md", "see ../root/x\n"}},
		{"a scratch folder", machinePaths, source{"a.md", "/tmp/ba" + "sh_jobs.0/1\n"}, source{"a.md", "/tmp/x\n"}},
		{"a registry", machinePaths, source{"a.mod", "GOPROXY=https://proxy.golang" + ".org\n"}, source{"a.mod", "https://go.dev\n"}},
		{"a silent package", parsed(t, silentPackages), source{"pkg/x/a.go", "package p\n"}, source{"pkg/x/a.go", header}},
		{"a silent main", parsed(t, silentPackages), source{"producer/main.go", "package main\n"}, source{"producer/main.go", "// Producer sells.\npackage main\n"}},
		{"a comment about another", parsed(t, silentPackages), source{"pkg/x/a.go", "// Package q is.\npackage p\n"}, source{"pkg/x/a_test.go", header}},
	}
	for _, c := range cases {
		if found := c.check([]source{c.bad}); len(found) == 0 {
			t.Errorf("%s: %s passes", c.fact, c.bad.path)
		}
		if found := c.check([]source{c.good}); len(found) != 0 {
			t.Errorf("%s: %s is accused: %v", c.fact, c.good.path, found)
		}
	}
}

// parsed lets a check of Go files be fed with text.
func parsed(t *testing.T, check func([]goFile) []string) func([]source) []string {
	return func(files []source) []string {
		var all []goFile
		for _, s := range files {
			f, err := parse(s)
			if err != nil {
				t.Errorf("the case does not parse: %v", err)
				continue
			}
			all = append(all, f)
		}
		return check(all)
	}
}

func tall(lines int) string { return strings.Repeat("\n", lines) }

func sleepy(name, statement string) string {
	return "// Package p is.\npackage p\n\nimport " + name + " \"time\"\n\nfunc f() { " + statement + " }\n"
}
