package tidy

import (
	"regexp"
	"strings"
	"testing"
)

var exampleBody = regexp.MustCompile(`(?s)\nfunc ExampleClient\(\) \{\n(.*?)\n\}\n`)

// The Go code of the README is the body of an example that compiles.
func TestReadmeShowsTheExample(t *testing.T) {
	t.Parallel()
	files := sources(t)
	readme, ok := find(files, "README.md")
	if !ok {
		t.Fatal("README.md is missing")
	}
	example, ok := find(files, "pkg/api/example_test.go")
	if !ok {
		t.Fatal("pkg/api/example_test.go is missing")
	}
	found := exampleBody.FindStringSubmatch(example.text)
	if found == nil {
		t.Fatal("pkg/api/example_test.go has no ExampleClient")
	}
	lines := strings.Split(found[1], "\n")
	for i := range lines {
		lines[i] = strings.TrimPrefix(lines[i], "\t")
	}
	if want := "```go\n" + strings.Join(lines, "\n") + "\n```"; !strings.Contains(readme.text, want) {
		t.Errorf("README.md does not show the body of ExampleClient as it is:\n%s", want)
	}
}
