package overlay

import (
	"strings"
	"testing"
)

func TestOptions(t *testing.T) {
	got, err := Layers{Lower: "a/lower", Upper: "a/upper", Work: "a/work"}.Options()
	if err != nil {
		t.Fatal(err)
	}
	var text []string
	for _, o := range got {
		text = append(text, o.Key+"="+o.Value)
	}
	const want = "source=agentguard-cow lowerdir=a/lower upperdir=a/upper workdir=a/work redirect_dir=on metacopy=off index=off xino=auto"
	if s := strings.Join(text, " "); s != want {
		t.Errorf("%s", s)
	}
	for _, bad := range []string{"", "a,b", "a:b", `a\b`, "a\x00b"} {
		for _, l := range []Layers{{bad, "u", "w"}, {"l", bad, "w"}, {"l", "u", bad}} {
			if _, err := l.Options(); err == nil {
				t.Errorf("%q was accepted", l)
			}
		}
	}
}
