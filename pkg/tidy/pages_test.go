package tidy

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// decisions is the folder of the decision records; its README lists them.
const decisions = "deploy/docs/decisions"

var (
	link       = regexp.MustCompile(`\]\(\s*<?([^)\s>]+)>?[^)]*\)`)
	heading    = regexp.MustCompile(`^#{1,6}\s+(.*?)\s*#*$`)
	headLink   = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	inlineMake = regexp.MustCompile("`(?:[A-Z_]+=\\S+ )*make ([a-z][a-z0-9_-]*)")
	blockMake  = regexp.MustCompile(`^\s*(?:\$ )?(?:[A-Z_]+=\S+ )*make ([a-z][a-z0-9_-]*)`)
	fence      = regexp.MustCompile("^\\s*(```|~~~)")
	makeRule   = regexp.MustCompile(`(?m)^([A-Za-z0-9_./ -]+?)\s*:(?:[^=]|$)`)
)

func TestLinksInThePagesLeadSomewhere(t *testing.T) {
	t.Parallel()
	files := sources(t)
	if _, ok := find(files, "README.md"); !ok {
		t.Skip("README.md is not written yet")
	}
	report(t, deadLinks(files))
}

func TestPagesNameOnlyTargetsThatTheMakefileHas(t *testing.T) {
	t.Parallel()
	files := sources(t)
	if _, ok := find(files, "README.md"); !ok {
		t.Skip("README.md is not written yet")
	}
	report(t, deadTargets(files))
}

func TestEveryDecisionIsListed(t *testing.T) {
	t.Parallel()
	report(t, unlistedDecisions(sources(t)))
}

// pages are the texts that users read.
func pages(files []source) []source {
	var found []source
	for _, f := range files {
		if f.isMarkdown() && (f.path == "README.md" || f.path == "CHANGELOG.md" || strings.HasPrefix(f.path, "deploy/")) {
			found = append(found, f)
		}
	}
	return found
}

func deadLinks(files []source) []string {
	var found []string
	for _, p := range pages(files) {
		for _, target := range linksOf(p) {
			if why := dead(files, p, target); why != "" {
				found = append(found, fmt.Sprintf("%s links to %s: %s", p.path, target, why))
			}
		}
	}
	return found
}

// linksOf gives the relative links of a page, code blocks left out.
func linksOf(p source) []string {
	var found []string
	eachLine(p.text, func(line string, inBlock bool) {
		if inBlock {
			return
		}
		for _, m := range link.FindAllStringSubmatch(line, -1) {
			if !strings.Contains(m[1], "://") && !strings.HasPrefix(m[1], "mailto:") {
				found = append(found, m[1])
			}
		}
	})
	return found
}

func dead(files []source, from source, target string) string {
	name, anchor, _ := strings.Cut(target, "#")
	to := from
	if name != "" {
		full := path.Join(from.dir(), name)
		file, ok := find(files, full)
		if !ok {
			isDir := slices.ContainsFunc(files, func(f source) bool { return strings.HasPrefix(f.path, full+"/") })
			if !isDir && full != "." {
				return "there is no such file"
			}
			return ""
		}
		to = file
	}
	if anchor != "" && to.isMarkdown() && !slices.Contains(anchors(to), anchor) {
		return "there is no such heading"
	}
	return ""
}

// anchors are the names that headings get on a forge: lower case, punctuation
// dropped, spaces to hyphens, a number behind a repeated one.
func anchors(p source) []string {
	var found []string
	times := map[string]int{}
	eachLine(p.text, func(line string, inBlock bool) {
		m := heading.FindStringSubmatch(line)
		if inBlock || m == nil {
			return
		}
		text := headLink.ReplaceAllString(m[1], "$1")
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, text)
		if n := times[name]; n > 0 {
			found = append(found, fmt.Sprintf("%s-%d", name, n))
		} else {
			found = append(found, name)
		}
		times[name]++
	})
	return found
}

func deadTargets(files []source) []string {
	makefile, _ := find(files, "Makefile")
	var targets []string
	for _, m := range makeRule.FindAllStringSubmatch(makefile.text, -1) {
		targets = append(targets, strings.Fields(m[1])...)
	}
	var found []string
	for _, p := range pages(files) {
		eachLine(p.text, func(line string, inBlock bool) {
			pattern := inlineMake
			if inBlock {
				pattern = blockMake
			}
			for _, m := range pattern.FindAllStringSubmatch(line, -1) {
				if !slices.Contains(targets, m[1]) {
					found = append(found, fmt.Sprintf("%s says `make %s`, which the Makefile does not have", p.path, m[1]))
				}
			}
		})
	}
	return found
}

func unlistedDecisions(files []source) []string {
	var index source
	for _, name := range []string{"README.md", "index.md"} {
		if f, ok := find(files, path.Join(decisions, name)); ok {
			index = f
			break
		}
	}
	listed := map[string]bool{}
	for _, target := range linksOf(index) {
		name, _, _ := strings.Cut(target, "#")
		listed[path.Join(decisions, name)] = true
	}
	var found []string
	for _, f := range files {
		if f.dir() == decisions && f.isMarkdown() && f.path != index.path && !listed[f.path] {
			found = append(found, fmt.Sprintf("%s is linked neither from README.md nor from index.md beside it", f.path))
		}
	}
	return found
}

func find(files []source, name string) (source, bool) {
	i := slices.IndexFunc(files, func(f source) bool { return f.path == name })
	if i < 0 {
		return source{}, false
	}
	return files[i], true
}

func eachLine(text string, visit func(line string, inBlock bool)) {
	inBlock := false
	for line := range strings.SplitSeq(text, "\n") {
		if fence.MatchString(line) {
			inBlock = !inBlock
			continue
		}
		visit(line, inBlock)
	}
}

func TestEveryCheckOfThePagesCanFail(t *testing.T) {
	t.Parallel()
	makefile := source{"Makefile", ".PHONY: demo test\nGO := go\ndemo test: setup ## play\nsetup:\n\ttrue\n"}
	other := source{"deploy/docs/runbook/lag.md", "# What lags?\n## Twice\n## Twice\n"}
	cases := []struct {
		fact      string
		check     func([]source) []string
		bad, good source
	}{
		{"a link to nothing", deadLinks,
			source{"README.md", "see [a](deploy/docs/gone.md)"}, source{"README.md", "see [a](deploy/docs/runbook/lag.md), [b](deploy/docs), [c](https://go.dev/gone)"}},
		{"a link from below", deadLinks,
			source{"deploy/docs/a.md", "[a](deploy/docs/runbook/lag.md)"}, source{"deploy/docs/a.md", "[a](runbook/lag.md \"lag\"), [b](../../Makefile)"}},
		{"a link to no heading", deadLinks,
			source{"README.md", "[a](deploy/docs/runbook/lag.md#lags)"}, source{"README.md", "[a](deploy/docs/runbook/lag.md#what-lags), [b](deploy/docs/runbook/lag.md#twice-1)"}},
		{"a link within the page", deadLinks,
			source{"README.md", "# Is it for me?\n[a](#for-me)"}, source{"README.md", "# Is it for me?\n[a](#is-it-for-me)\n```\n[x](gone)\n```\n"}},
		{"an inline target", deadTargets,
			source{"README.md", "run `make demos`"}, source{"README.md", "run `make demo ORDERS=x`, and make peace"}},
		{"a target in a block", deadTargets,
			source{"deploy/docs/a.md", "```sh\n$ SHARDS=4 make tests\n```\n"}, source{"deploy/docs/a.md", "```sh\nmake test\necho make x\n```\n"}},
		{"an assignment is no target", deadTargets,
			source{"README.md", "`make go`"}, source{"README.md", "`make setup`"}},
		{"an unlisted decision", unlistedDecisions,
			source{decisions + "/0001-grammar.md", "# Grammar"}, source{decisions + "/README.md", "- [1](0001-grammar.md)"}},
	}
	for _, c := range cases {
		if found := c.check([]source{makefile, other, c.bad}); len(found) == 0 {
			t.Errorf("%s: %q passes", c.fact, c.bad.text)
		}
		if found := c.check([]source{makefile, other, c.good}); len(found) != 0 {
			t.Errorf("%s: %q is accused: %v", c.fact, c.good.text, found)
		}
	}
	listed := []source{{decisions + "/README.md", "- [1](0001-grammar.md)"}, {decisions + "/0001-grammar.md", "# Grammar"}}
	if found := unlistedDecisions(listed); len(found) != 0 {
		t.Errorf("a listed decision is accused: %v", found)
	}
}
