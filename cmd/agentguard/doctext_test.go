//go:build linux

package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/agentguard/agentguard/policy"
)

// pages are the texts that people copy from.
func pages(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, name := range append(names, "../../README.md") {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Base(name)] = string(b)
	}
	return out
}

// calls are the command lines of agentguard in a text, word by word: those that
// begin a line, that stand in backticks, or that come after && or |.
func calls(text string) (out [][]string) {
	start := regexp.MustCompile("(?m)(?:^[ \t]*(?:\\$ )?|`|&& |\\| )(?:sudo )?agentguard ([^`\n]*)")
	for _, m := range start.FindAllStringSubmatch(text, -1) {
		if line := words(m[1]); len(line) > 0 {
			out = append(out, line)
		}
	}
	return out
}

// words splits a command line as a shell would, up to what ends the command.
func words(line string) (out []string) {
	var word strings.Builder
	begun, quote := false, rune(0)
	end := func() {
		if begun {
			out = append(out, word.String())
		}
		word.Reset()
		begun = false
	}
	for i, c := range line {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(c)
		case c == '\'' || c == '"':
			quote, begun = c, true
		case c == ' ' || c == '\t':
			end()
		case strings.ContainsRune("|;&<>)", c), c == '#' && !begun && i > 0:
			if c == '>' && word.Len() == 1 { // 3>file
				begun = false
			}
			end()
			return out
		default:
			word.WriteRune(c)
			begun = true
		}
	}
	end()
	return out
}

// TestCommandLinesInTexts parses every command line of the docs, the help and
// the README: the command exists, it has these flags, and so many arguments.
func TestCommandLinesInTexts(t *testing.T) {
	texts := pages(t)
	eachCommand(newRoot(), func(c *cobra.Command, name string) { texts["help of "+name] = c.Example })
	for name, text := range texts {
		for _, line := range calls(text) {
			if err := parses(line); err != nil {
				t.Errorf("%s: agentguard %s: %v", name, strings.Join(line, " "), err)
			}
		}
	}
}

// prose are words after "agentguard" at the beginning of a line that are no commands.
var prose = []string{"run", "could", "needs"}

func parses(line []string) error {
	root := newRoot()
	if slices.Contains(prose, line[0]) || line[0] == "--version" {
		return nil
	}
	for i, w := range line { // alternatives of a synopsis: `exec --json FILE\|fd:N\|-`
		line[i], _, _ = strings.Cut(w, "\\|")
	}
	if err := unknownOf(root, line); err != nil {
		return err
	}
	c, rest, err := root.Find(line)
	if err != nil {
		return err
	}
	if err := c.ParseFlags(rest); err != nil {
		return err
	}
	if args := c.Flags().Args(); c.Runnable() && len(args) > 0 { // without: the command as such is meant
		return c.ValidateArgs(args)
	}
	return nil
}

// TestPoliciesInTexts reads every policy on the pages as exec -p would.
func TestPoliciesInTexts(t *testing.T) {
	for name, text := range pages(t) {
		for _, m := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(text, -1) {
			if strings.HasPrefix(m[1], "ceiling:") {
				continue // package policy reads these
			}
			if _, err := policy.Parse("/policy.yaml", []byte(m[1])); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// literals are the string literals of the program's own packages.
func literals(t *testing.T) (all []string) {
	t.Helper()
	err := filepath.WalkDir("../..", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if d != nil && d.IsDir() && (strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2 || d.Name() == "testdata" || d.Name() == "bench") {
				return filepath.SkipDir
			}
			return err
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				if s, err := strconv.Unquote(l.Value); err == nil {
					all = append(all, s)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestCommandsInMessages looks for advice that does not exist: "see agentguard
// verify", where the command is trace verify.
func TestCommandsInMessages(t *testing.T) {
	root, below := newRoot(), map[string]bool{}
	eachCommand(root, func(c *cobra.Command, name string) {
		if _, last, ok := strings.Cut(name, " "); ok {
			below[last] = true
		}
	})
	named := regexp.MustCompile(`agentguard ([a-z-]+)(?: ([a-z-]+))?`)
	for _, s := range literals(t) {
		for _, m := range named.FindAllStringSubmatch(s, -1) {
			c, _, err := root.Find(m[1:2])
			switch {
			case (err != nil || c == root) && below[m[1]]:
				t.Errorf("%q: there is no command agentguard %s", s, m[1])
			case err == nil && c != root && c.HasSubCommands() && m[2] != "":
				if err := unknownOf(newRoot(), m[1:3]); err != nil {
					t.Errorf("%q: %v", s, err)
				}
			}
		}
	}
}

// TestTroubleshooting wants of each text that docs/troubleshooting.md explains
// that the program can say it: its parts between dots are parts of literals, in
// their order.
func TestTroubleshooting(t *testing.T) {
	all := literals(t)
	entries := regexp.MustCompile("(?m)^### `([^`\n]+)`").FindAllStringSubmatch(readDoc(t, "troubleshooting.md"), -1)
	if len(entries) < 20 {
		t.Fatalf("%d texts are explained", len(entries))
	}
	for _, m := range entries {
		for _, part := range strings.Split(m[1], "...") {
			part = strings.TrimSpace(part)
			if len(part) < 3 {
				continue
			}
			if !slices.ContainsFunc(all, func(s string) bool { return strings.Contains(s, part) }) {
				t.Errorf("docs/troubleshooting.md explains %q, but nothing says %q", m[1], part)
			}
		}
	}
}

// TestLinksInTexts follows the links from one page to another, and to headings.
func TestLinksInTexts(t *testing.T) {
	all := pages(t)
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	for name, text := range all {
		dir := "../../docs"
		if name == "README.md" {
			dir = "../.."
		}
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			file, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(file, "://") {
				continue
			}
			target := text
			if file != "" {
				b, err := os.ReadFile(filepath.Join(dir, file))
				if st, serr := os.Stat(filepath.Join(dir, file)); serr == nil && st.IsDir() {
					continue
				}
				if err != nil {
					t.Errorf("%s: %v", name, err)
					continue
				}
				target = string(b)
			}
			if anchor != "" && !hasHeading(target, anchor) {
				t.Errorf("%s: no heading for %s", name, m[1])
			}
		}
	}
}

// hasHeading looks for an anchor as GitHub makes them: lower case, blanks to
// dashes, without signs.
func hasHeading(text, anchor string) bool {
	drop := regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	for line := range bytes.Lines([]byte(text)) {
		h, ok := bytes.CutPrefix(bytes.TrimLeft(line, "#"), []byte(" "))
		if ok && line[0] == '#' {
			s := strings.ToLower(strings.TrimSpace(string(h)))
			if strings.ReplaceAll(drop.ReplaceAllString(s, ""), " ", "-") == anchor {
				return true
			}
		}
	}
	return false
}
