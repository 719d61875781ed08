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
		for _, l := range []Layers{{Lower: bad, Upper: "u", Work: "w"}, {Lower: "l", Upper: bad, Work: "w"}, {Lower: "l", Upper: "u", Work: bad}} {
			if _, err := l.Options(); err == nil {
				t.Errorf("%+v was accepted", l)
			}
		}
	}
}
