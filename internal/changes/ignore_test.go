package changes

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// ignored answers for one path as FoldIgnored asks.
func ignored(g *ignores, p string, dir bool) bool {
	if dir {
		return g.dir(p) != ""
	}
	return g.dir(parentOf(p)) != "" || g.file(p)
}

func TestIgnores(t *testing.T) {
	files := map[string]string{
		"":       "# c\n*.o\n/build/\nout\n!keep.o\ndoc/*.txt\n**/cache/**\nlogs/**/debug\n[!a]x\nsp\\ \ntrail  \n\\#hash\n\\!bang\na**b\n[\nfoo/\r\n\ufeffx\n",
		"sub":    "!*.o\n/only\n*.keep/\n",
		"sub/sb": "*.o\n",
	}
	g := newIgnores(func(dir string) []byte { return []byte(files[dir]) })
	for p, want := range map[string]bool{
		"a.o": true, "x/y/a.o": true, "keep.o": false, "build/": true, "build": false, "x/build/": false, "build/a/b": true, "x/out": true, "out/": true, "out/z": true,
		"doc/a.txt": true, "doc/b/a.txt": false, "cache/": false, "cache/x": true, "x/cache/y/z": true, "logs/debug": true, "logs/a/b/debug": true,
		"bx": true, "ax": false, "sp ": true, "sp": false, "trail": true, "#hash": true, "!bang": true, "aXXb": true, "a/b": false, "[": false, "foo/": true, "foo": false,
		"sub/a.o": false, "sub/only": true, "sub/x/only": false, "sub/z.keep/": true, "sub/z.keep": false, "sub/sb/a.o": true,
	} {
		if got := ignored(g, strings.TrimSuffix(p, "/"), strings.HasSuffix(p, "/")); got != want {
			t.Errorf("%q: %v", p, got)
		}
	}
}

// An exception that is not understood hides nothing.
func TestIgnoresException(t *testing.T) {
	many := strings.Repeat("a\n", maxRules)
	for text, want := range map[string]bool{"*\n": true, "*\n![[:alpha:]]*.txt\n": false, "[[:alpha:]]*\n*\n": true, "*\n!" + strings.Repeat("a/", maxParts) + "b\n": false, "*\n" + many: false} {
		if got := ignored(newIgnores(func(string) []byte { return []byte(text) }), "x.txt", false); got != want {
			t.Errorf("%.40q: %v", text, got)
		}
	}
}

// Hostile patterns take bounded time.
func TestIgnoresBounded(t *testing.T) {
	line := strings.Repeat("**/*a*a*a*a*a*a*b/", 15) + "x\n"
	g := newIgnores(func(string) []byte { return []byte(strings.Repeat(line, 4000)) })
	g.left = 1 << 17
	p := strings.Repeat(strings.Repeat("a", 200)+"/", 200) + "y"
	for range 20 {
		if ignored(g, p, false) {
			t.Error("ignored")
		}
	}
}

// A long comparison takes more of what is left: with a name as long, this pattern takes half a millisecond each time.
func TestIgnoresLong(t *testing.T) {
	long, short := "*"+strings.Repeat("[^b]", 127)+"b", "a"
	for pattern, want := range map[string]int{long: 2*16 + 31*16, short: 2 * 16} { // "**" and itself, in sixteens of bytes, by the name's
		g := newIgnores(func(string) []byte { return []byte(pattern) })
		if g.file(strings.Repeat("a", 255)); maxComparisons-g.left != want {
			t.Errorf("%d took %d, want %d", len(pattern), maxComparisons-g.left, want)
		}
	}
}

// What git says is what we say, but that we may list more.
func FuzzIgnore(f *testing.F) {
	git, err := exec.LookPath("git")
	if err != nil {
		return // Debian without git: TestIgnores remains
	}
	f.Add("*.o\n!a.o\nb/\n/c\n", "b/c/a.o")
	f.Add("a/**/b\n**/c\nd/**\n", "a/x/b/c")
	f.Add("[a-c]?\n\\!x\n* \n", "ab")
	f.Add("?000", ":000")
	f.Add("?", "\u88e3")
	f.Add("???\n[\u00e4]*", "\u00e4b")
	dir := f.TempDir()
	if out, err := exec.Command(git, "init", "-q", dir).CombinedOutput(); err != nil {
		f.Fatalf("%v %s", err, out)
	}
	f.Fuzz(func(t *testing.T, patterns, p string) {
		parts := strings.Split(p, "/")
		if len(patterns) > 200 || len(p) > 60 || strings.ContainsAny(patterns+p, "\x00\\") || strings.ContainsAny(p, "\n\"") || slices.ContainsFunc(parts, func(s string) bool {
			return s == "" || s == "." || s == ".." || strings.EqualFold(s, ".git") || s == ".gitignore"
		}) {
			return
		}
		g := newIgnores(func(dir string) []byte {
			if dir == "" {
				return []byte(patterns)
			}
			return nil
		})
		ours := ignored(g, p, false)
		if !ours {
			return // listed: nothing is hidden
		}
		must(t, os.WriteFile(filepath.Join(dir, ".gitignore"), []byte(patterns), 0o644))
		cmd := exec.Command(git, "-C", dir, "check-ignore", "-q", "--no-index", "--stdin", "-z")
		cmd.Stdin = bytes.NewReader([]byte("./" + p + "\x00")) // a colon in front would be pathspec magic
		cmd.Env = []string{"HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1"}
		if err := cmd.Run(); err != nil {
			t.Errorf("%q folds %q, which git does not ignore: %v", patterns, p, err)
		}
	})
}
