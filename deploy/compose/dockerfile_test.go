package compose

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A stage of a Dockerfile: its base image, and its instructions in order.
type stage struct {
	base, name string
	steps      []step
}

// A step is one instruction; its words are split at blanks, which is all that ours need.
type step struct {
	does  string
	words []string
}

// stages parses what the Dockerfile uses of the language, and refuses the rest, so that nothing is overlooked.
func stages(text string) ([]stage, error) {
	var found []stage
	for number, line := range strings.Split(text, "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		words := strings.Fields(line)
		does, words := words[0], words[1:]
		switch {
		case strings.HasSuffix(line, `\`) || strings.ContainsAny(line, `"'$`):
			return nil, fmt.Errorf("line %d needs a real parser: %s", number+1, line)
		case does == "FROM" && len(words) == 1:
			found = append(found, stage{base: words[0]})
		case does == "FROM" && len(words) == 3 && words[1] == "AS":
			found = append(found, stage{base: words[0], name: words[2]})
		case slices.Contains([]string{"WORKDIR", "COPY", "RUN", "ENV", "USER"}, does) && len(found) > 0 && len(words) > 0:
			last := &found[len(found)-1]
			last.steps = append(last.steps, step{does, words})
		default:
			return nil, fmt.Errorf("line %d is not expected: %s", number+1, line)
		}
	}
	return found, nil
}

func dockerfile(t testing.TB) (build, final stage) {
	t.Helper()
	text := read(t, "deploy/Dockerfile")
	all, err := stages(text)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 2 || all[0].name != "build" {
		t.Fatalf("want a stage that builds and one that ships, found %+v", all)
	}
	return all[0], all[1]
}

func read(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestTheImageIsStaticSmallAndWithoutRoot(t *testing.T) {
	t.Parallel()
	build, final := dockerfile(t)
	if !regexp.MustCompile(`^gcr\.io/distroless/static-debian\d+:nonroot$`).MatchString(final.base) {
		t.Errorf("the image is %s", final.base)
	}
	user := ""
	for _, s := range final.steps {
		switch {
		case s.does == "RUN":
			t.Errorf("RUN %v: there is no shell in the image", s.words)
		case s.does == "COPY" && s.words[0] != "--from=build":
			t.Errorf("COPY %v: only what was built belongs into the image", s.words)
		case s.does == "USER":
			user = s.words[0]
		}
	}
	if user != "nonroot" {
		t.Errorf("the programs run as %q", user)
	}
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read(t, "go.mod"))
	if version == nil || build.base != "golang:"+version[1] {
		t.Errorf("go.mod wants Go %v, the image is built with %s", version, build.base)
	}
}

// shipped are the paths in the image → the paths in the stage that built them.
func shipped(t testing.TB, final stage) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, s := range final.steps {
		if s.does != "COPY" {
			continue
		}
		sources, target := s.words[1:len(s.words)-1], s.words[len(s.words)-1]
		if !strings.HasSuffix(target, "/") {
			t.Fatalf("COPY %v: end the folder with a slash", s.words)
		}
		for _, source := range sources {
			found[target+path.Base(source)] = source
		}
	}
	return found
}

func TestEveryProgramThatTheServicesStartIsInTheImage(t *testing.T) {
	t.Parallel()
	_, final := dockerfile(t)
	inImage := shipped(t, final)
	p := project(t)
	for _, name := range ours(p) {
		s := p.Services[name]
		if inImage[s.Command[0]] == "" {
			t.Errorf("%s starts %s; the image has %v", name, s.Command[0], inImage)
		}
		if s.Build.Dockerfile != "deploy/Dockerfile" || !sameFolder(t, s.Build.Context, root) || s.Build.Target != "" {
			t.Errorf("%s is built from %s with %s, target %q", name, s.Build.Context, s.Build.Dockerfile, s.Build.Target)
		}
	}
	for _, r := range roles {
		if inImage[programs+r.name] == "" {
			t.Errorf("the image lacks %s", r.name)
		}
	}
}

func sameFolder(t testing.TB, a, b string) bool {
	t.Helper()
	left, err := os.Stat(a)
	if err != nil {
		t.Fatal(err)
	}
	right, err := os.Stat(b)
	if err != nil {
		t.Fatal(err)
	}
	return os.SameFile(left, right)
}

// TestTheImagesProgramsBuildFromWhatTheBuilderSees plays the build stage: it lays out what .dockerignore lets
// through, runs each RUN line that builds, and asks the static programs for their help. It compiles everything anew, so
// it runs with the long suites.
func TestTheImagesProgramsBuildFromWhatTheBuilderSees(t *testing.T) {
	t.Parallel()
	if os.Getenv("STOCKPIPE_SUITE") != "full" {
		t.Skip("it builds everything once more, with the flags of the image: make test-image does")
	}
	build, final := dockerfile(t)
	source, out := t.TempDir(), t.TempDir()
	layOut(t, source)
	environment := os.Environ()
	built := map[string]bool{}
	for _, s := range build.steps {
		switch {
		case s.does == "ENV":
			environment = append(environment, s.words...)
		case s.does == "RUN" && slices.Equal(s.words[:2], []string{"go", "build"}):
			words := slices.Clone(s.words)
			at := slices.Index(words, "-o") + 1
			built[words[at]] = true
			words[at] = filepath.Join(out, path.Base(words[at]))
			cmd := exec.CommandContext(t.Context(), words[0], words[1:]...)
			cmd.Dir, cmd.Env = source, environment
			if said, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("RUN %v: %v\n%s", s.words, err, said)
			}
		}
	}
	if !slices.Contains(environment, "CGO_ENABLED=0") {
		t.Error("the programs may need a C library, which the image does not have")
	}
	for target, from := range shipped(t, final) {
		if !built[from] {
			t.Errorf("%s comes from %s, which no RUN line builds: %v", target, from, built)
			continue
		}
		cmd := exec.CommandContext(t.Context(), filepath.Join(out, path.Base(from)), "--help")
		if said, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(said), path.Base(target)) {
			t.Errorf("%s --help: %v\n%s", target, err, said)
		}
	}
}

// An ignoring is one line of .dockerignore. The last that matches decides.
type ignoring struct {
	pattern string
	keeps   bool
}

func ignorings(t testing.TB) (lines []ignoring) {
	t.Helper()
	for line := range strings.Lines(read(t, ".dockerignore")) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		pattern, keeps := strings.CutPrefix(line, "!")
		lines = append(lines, ignoring{pattern, keeps})
	}
	return lines
}

// ignored follows the builder's rules: a pattern names a path from the top, or any path below one that it names; two
// stars stand for any folders.
func ignored(lines []ignoring, file string) bool {
	out := false
	for _, l := range lines {
		pattern, anywhere := strings.CutPrefix(l.pattern, "**/")
		parts := strings.Split(file, "/")
		for from := range parts {
			if from > 0 && !anywhere {
				break
			}
			for to := from + 1; to <= len(parts); to++ {
				if ok, err := path.Match(pattern, strings.Join(parts[from:to], "/")); err == nil && ok {
					out = !l.keeps
				}
			}
		}
	}
	return out
}

func TestTheBuilderSeesOnlyWhatProgramsAreMadeOf(t *testing.T) {
	t.Parallel()
	lines := ignorings(t)
	for file, want := range map[string]bool{
		"go.mod": false, "go.sum": false, "consumer/main.go": false, "migrations/00001_x.sql": false,
		"pkg/redisstock/library/3_apply.lua": false, "pkg/ledger/ledger_test.go": true, "pkg/event/testdata/a/b": true,
		".git/config": true, ".bin/tool": true, "README.md": true, "deploy/demo/main.go": true, "keep/pw": true, ".env": true,
	} {
		if got := ignored(lines, file); got != want {
			t.Errorf("%s is ignored: %t, want %t", file, got, want)
		}
	}
}

// layOut copies what the builder would see.
func layOut(t testing.TB, target string) {
	t.Helper()
	lines := ignorings(t)
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
			return fs.SkipDir
		case !d.Type().IsRegular() || ignored(lines, rel):
			return nil
		}
		text, err := os.ReadFile(full)
		if err != nil {
			return err
		}
		to := filepath.Join(target, filepath.FromSlash(rel))
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			return err
		}
		return os.WriteFile(to, text, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestADockerfileThatSaysMoreThanTheTestUnderstandsIsRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"RUN x", "FROM a\nADD b c", "FROM a\nRUN b \\\n c", "FROM a\nENV A=$B", "FROM a AS"} {
		if all, err := stages(text); err == nil {
			t.Errorf("%q passes as %+v", text, all)
		}
	}
}
