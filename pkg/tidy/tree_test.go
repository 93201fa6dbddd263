package tidy

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

// root is the top of the repository, seen from this package.
const root = "../.."

// maxText bounds what is read as text, in bytes; larger files are data.
const maxText = 1 << 20

// A source is one file of the repository. Paths use slashes and are relative
// to the top. Data (not UTF-8, or too large) has no text.
type source struct {
	path, text string
}

func (s source) lines() int         { return strings.Count(s.text, "\n") }
func (s source) isTest() bool       { return strings.HasSuffix(s.path, "_test.go") }
func (s source) dir() string        { return path.Dir(s.path) }
func (s source) base() string       { return path.Base(s.path) }
func (s source) isGo() bool         { return strings.HasSuffix(s.path, ".go") && !s.isFixture() }
func (s source) isFixture() bool    { return slices.Contains(strings.Split(s.path, "/"), "testdata") }
func (s source) isMarkdown() bool   { return strings.HasSuffix(s.path, ".md") }
func (s source) sleepsFreely() bool { return s.isTest() || isTestCode(s.dir()) }

// A goFile is a parsed source. Files are parsed one by one instead of asking
// the go tool for packages, so that files behind build tags are judged too, on
// every system, and a package that does not build yet hides nothing.
type goFile struct {
	source
	ast *ast.File
}

var tree = sync.OnceValues(readTree)

// sources gives every file of the repository.
func sources(t *testing.T) []source {
	t.Helper()
	files, err := tree()
	if err != nil {
		t.Fatalf("read the repository: %v", err)
	}
	if len(files) == 0 {
		t.Fatalf("no file found from %s: the checks would pass on nothing", root)
	}
	return files
}

func goFiles(t *testing.T) []goFile {
	t.Helper()
	var parsed []goFile
	for _, s := range sources(t) {
		if !s.isGo() {
			continue
		}
		f, err := parse(s)
		if err != nil {
			t.Errorf("%s does not parse: %v", s.path, err)
			continue
		}
		parsed = append(parsed, f)
	}
	return parsed
}

func parse(s source) (goFile, error) {
	f, err := parser.ParseFile(token.NewFileSet(), s.path, s.text, parser.ParseComments)
	return goFile{s, f}, err
}

// readTree walks the disk, because the test cache of the go tool notices what a
// walk sees; git is only asked which of the files it ignores.
func readTree() ([]source, error) {
	kept := keptByGit()
	var files []source
	err := filepath.WalkDir(root, func(full string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, full)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		switch {
		case d.IsDir() && (rel == ".git" || rel == ".bin"):
			return filepath.SkipDir
		case !d.Type().IsRegular(), kept != nil && !kept[rel]:
			return nil
		}
		text, err := readText(full)
		files = append(files, source{rel, text})
		return err
	})
	return files, err
}

func readText(name string) (string, error) {
	info, err := os.Stat(name)
	if err != nil || info.Size() > maxText {
		return "", err
	}
	text, err := os.ReadFile(name)
	if err != nil || !utf8.Valid(text) {
		return "", err
	}
	return string(text), nil
}

// keptByGit is the set of files that git has or would add; nil where there is
// no git or no repository, as in an unpacked archive: then every file counts.
func keptByGit() map[string]bool {
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = root
	out, err := list.Output()
	if err != nil || len(out) == 0 {
		return nil
	}
	kept := map[string]bool{}
	for name := range bytes.SplitSeq(out, []byte{0}) {
		kept[string(name)] = true
	}
	return kept
}

// graph turns parsed files into packages and edges.
func graph(files []goFile) (packages []string, edges []edge) {
	for _, f := range files {
		if !slices.Contains(packages, f.dir()) {
			packages = append(packages, f.dir())
		}
		for _, spec := range f.ast.Imports {
			to, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				continue // the parser accepts only quoted paths
			}
			to = strings.TrimPrefix(to, module+"/")
			edges = append(edges, edge{from: f.dir(), to: to, test: f.isTest()})
		}
	}
	return packages, edges
}
