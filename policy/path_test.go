package policy

import (
	"strings"
	"testing"
)

func TestParseMount(t *testing.T) {
	for text, want := range map[string]string{
		"/a":                             "/a /a",
		"/a/":                            "/a /a",
		"/a/./b/../c":                    "/a/c /a/c",
		"rel":                            "/base/rel /base/rel",
		"./rel/../x":                     "/base/x /base/x",
		"../up":                          "/up /up",
		"../../../..":                    "",
		".":                              "/base /base",
		"/a:/b/":                         "/a /b",
		"rel:/b":                         "/base/rel /b",
		"/:/host":                        "/ /host",
		"/a b*?":                         "/a b*? /a b*?",
		"/bücher":                        "/bücher /bücher",
		"":                               "",
		":":                              "",
		":/b":                            "",
		"/a:":                            "",
		"/a:b":                           "",
		"/a:~":                           "",
		"/a:/b:/c":                       "",
		"/":                              "",
		"/a:/":                           "",
		"/a:/proc":                       "",
		"/a:/sys/fs":                     "",
		"/dev/null":                      "",
		"/a:/x/../dev":                   "",
		"/process":                       "/process /process",
		"~":                              "",
		"~user/x":                        "",
		"$HOME":                          "",
		"/a\x00b":                        "",
		"/a\nb":                          "",
		"/a\x7f":                         "",
		"/" + strings.Repeat("a", 256):   "",
		"/" + strings.Repeat("a/", 2048): "",
	} {
		m, p := parseMount(value{text: text, base: "/base"})
		got := m.Path + " " + m.At
		if p != nil {
			got = ""
		}
		if got != want {
			t.Errorf("%q: %q, %v; want %q", text, got, p, want)
		}
	}
	if _, p := parseMount(value{text: "rel"}); p == nil {
		t.Error("a path relative to nothing")
	}
}

func TestParseProtect(t *testing.T) {
	for text, want := range map[string]string{
		".git/hooks/": ".git/hooks", "/etc/x": "/etc/x", "a/../b": "b", "": "", "..": "", "../x": "", "a/../..": "", ".": "", "~/x": "", "a\x1b": "",
	} {
		got, p := parseProtect(value{text: text})
		if (p == nil) != (want != "") || p == nil && got.Value != want {
			t.Errorf("%q: %q, %v", text, got.Value, p)
		}
	}
}

func TestBelow(t *testing.T) {
	for _, c := range []struct {
		path, dir string
		want      bool
	}{{"/a", "/a", true}, {"/a/b", "/a", true}, {"/ab", "/a", false}, {"/", "/", true}, {"/a", "/", true}, {"/", "/a", false}} {
		if below(c.path, c.dir) != c.want {
			t.Errorf("%s below %s", c.path, c.dir)
		}
	}
}
