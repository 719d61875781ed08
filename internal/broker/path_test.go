package broker

import (
	"net/url"
	"strings"
	"testing"
)

func FuzzPath(f *testing.F) {
	for _, s := range []string{"/v1/models/a", "/a/../b", "/%2e%2e/a", "/a%2fb", "//", "/a;b", "/ü", "/a/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, path string) {
		parts, err := ParsePath(path)
		if err != nil {
			return
		}
		sent := EscapePath(parts)
		again, err := ParsePath(sent)
		if err != nil || strings.Join(again, "\x00") != strings.Join(parts, "\x00") {
			t.Fatalf("%q was sent as %q, which reads %q (%v)", path, sent, again, err)
		}
		u, err := url.Parse("https://host" + sent)
		if err != nil || u.Host != "host" || u.RawQuery != "" || u.Fragment != "" || u.Path != "/"+strings.Join(parts, "/") || u.JoinPath().Path != u.Path {
			t.Fatalf("%q: %+v %v", sent, u, err)
		}
	})
}
