package codewatch

import "testing"

func TestMergedAt(t *testing.T) {
	w := &Watch{}
	for _, at := range []string{"/w", "/w/in/side", "/"} {
		w.Merge(at, nil)
	}
	for path, want := range map[string][2]string{
		"/w/a":              {"/w", "a"},
		"/w/in/a":           {"/w", "in/a"},
		"/w/in/side/a":      {"/w/in/side", "a"},
		"/well/a":           {"/", "well/a"},
		"/w/gone (deleted)": {"/w", "gone (deleted)"},
	} {
		m, rel := w.mergedAt(path)
		if m == nil || m.at != want[0] || rel != want[1] {
			t.Errorf("%s: %v %q, want %q", path, m, rel, want)
		}
	}
	if m, _ := (&Watch{merged: w.merged[:2]}).mergedAt("/other/a"); m != nil {
		t.Errorf("%+v", m)
	}
}
