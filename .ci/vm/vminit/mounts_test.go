//go:build linux && amd64

package main

import "testing"

func TestShareMounts(t *testing.T) {
	share := []string{"/home/me/repo", "/tmp/repo", "/tmp/repo/pkg", "/tmpfile", "/run/a:b,c", "/tmp"}
	want := []struct{ target, data string }{
		{"/tmp/repo", "lowerdir=/lower/tmp/repo,upperdir=/upper/2/u,workdir=/upper/2/w,xino=on"},
		{"/run/a:b,c", `lowerdir=/lower/run/a\:b\,c,upperdir=/upper/5/u,workdir=/upper/5/w,xino=on`},
		{"/tmp", "lowerdir=/lower/tmp,upperdir=/upper/6/u,workdir=/upper/6/w,xino=on"},
	}
	got := shareMounts(share, guestMounts)
	if len(got) != len(want) {
		t.Fatalf("%d mounts, want %d: %+v", len(got), len(want), got)
	}
	for i, w := range want {
		if got[i].target != w.target || got[i].data != w.data {
			t.Errorf("mount %d is %s with %s, want %s with %s", i, got[i].target, got[i].data, w.target, w.data)
		}
	}
}
