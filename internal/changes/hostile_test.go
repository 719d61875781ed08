package changes

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// plainTree packs an upper that needs no overlay: everything in it is new.
func plainTree(t *testing.T, upper, base string) *Set {
	t.Helper()
	dir := open(t, t.TempDir())
	_, err := Pack(dir, []Tree{{Upper: open(t, upper), Lower: open(t, base), Host: base}}, DefaultBounds())
	must(t, err)
	set, err := Open(dir)
	must(t, err)
	t.Cleanup(func() { must(t, set.Close()) })
	return set
}

func commitAll(t *testing.T, set *Set, base string) error {
	t.Helper()
	j, err := os.OpenFile(filepath.Join(t.TempDir(), "journal"), os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	must(t, err)
	defer j.Close()
	picks := make([]bool, len(set.Entries))
	for i := range picks {
		picks[i] = true
	}
	return set.Commit(open(t, base), set.at(1), picks, Options{ID: "deep", Journal: j})
}

// A tree that is deeper than any path can say is packed, shown, committed and
// packed again as deleted; few descriptors are open at any time.
func TestDeepTree(t *testing.T) {
	levels := 1500
	if s := os.Getenv("AGENTGUARD_TEST_LEVELS"); s != "" {
		var err error
		levels, err = strconv.Atoi(s)
		must(t, err)
	}
	limitFiles(t, 400)
	upper, base := t.TempDir(), t.TempDir()
	t.Cleanup(func() { run(t, "rm", "-rf", upper, base) })
	fd, err := unix.Open(upper, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	must(t, err)
	for range levels {
		must(t, unix.Mkdirat(fd, "directory", 0o755))
		next, err := unix.Openat(fd, "directory", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		must(t, err, unix.Close(fd))
		fd = next
	}
	leaf, err := unix.Openat(fd, "leaf", unix.O_WRONLY|unix.O_CREAT, 0o644)
	must(t, err, unix.Close(fd))
	_, err = unix.Write(leaf, []byte("at the bottom"))
	must(t, err, unix.Close(leaf))

	set := plainTree(t, upper, base)
	if len(set.Findings) > 0 || len(set.Entries) != levels+2 {
		t.Fatalf("%d entries, findings %q", len(set.Entries), set.Findings)
	}
	var shown bytes.Buffer
	must(t, WriteNameStatus(&shown, set.Changes(nil, nil)[:10]))
	must(t, commitAll(t, set, base))
	again := plainTree(t, upper, base)
	if sum := again.summary(); !sum.Empty() {
		t.Errorf("after commit %d entries differ", len(again.Entries))
	}
}

// Many files are packed, shown, committed and deleted again in bounded time and
// memory: a few here, 500 000 where AGENTGUARD_TEST_FILES says so.
func TestManyFiles(t *testing.T) {
	testenv.Root(t)
	n := 2000
	if testing.Short() {
		n = 300
	}
	if s := os.Getenv("AGENTGUARD_TEST_FILES"); s != "" {
		var err error
		n, err = strconv.Atoi(s)
		must(t, err)
	}
	upper, base := t.TempDir(), t.TempDir()
	for i := range n {
		dir := fmt.Sprintf("%s/d%d", upper, i/1000)
		if i%1000 == 0 {
			must(t, os.Mkdir(dir, 0o755))
		}
		must(t, os.WriteFile(fmt.Sprintf("%s/f%d", dir, i), []byte(strconv.Itoa(i%100)), 0o644))
	}
	set := plainTree(t, upper, base)
	if sum := set.summary(); sum.Added != n+(n+999)/1000 || len(set.Findings) > 0 {
		t.Fatalf("%+v, %q", sum, set.Findings)
	}
	must(t, WriteNameStatus(&bytes.Buffer{}, set.Changes(nil, nil)), commitAll(t, set, base))
	must(t, os.RemoveAll(upper), os.Mkdir(upper, 0o755))
	for i := range (n + 999) / 1000 {
		must(t, unix.Mknod(fmt.Sprintf("%s/d%d", upper, i), unix.S_IFCHR, 0))
	}
	must(t, commitAll(t, plainTree(t, upper, base), base))
	if left, err := os.ReadDir(base); err != nil || len(left) > 0 {
		t.Errorf("%d left, %v", len(left), err)
	}
}

// limitFiles lowers the number of descriptors for a test.
func limitFiles(t *testing.T, n uint64) {
	t.Helper()
	var old unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: old.Max}))
	t.Cleanup(func() { must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old)) })
}

// A line of the journal that a full disk or a crash has cut does not spoil what
// is added after it.
func TestTornJournal(t *testing.T) {
	for _, text := range []string{"{\"sta", "{\"state\":\"begin\",\"root\":1,\"picks\":[[1,2]]}\n{\"state\":\"undo"} {
		upper, base := t.TempDir(), t.TempDir()
		must(t, os.WriteFile(upper+"/f", []byte("new"), 0o644), os.WriteFile(base+"/f", []byte("old"), 0o644))
		set := plainTree(t, upper, base)
		name := filepath.Join(t.TempDir(), "journal")
		must(t, os.WriteFile(name, []byte(text), 0o600))
		j, err := os.OpenFile(name, os.O_RDWR|os.O_APPEND, 0)
		must(t, err)
		must(t, set.Commit(open(t, base), set.at(1), []bool{false, true}, Options{ID: "torn", Journal: j}))
		done, unfinished, err := set.Settled(j)
		if err != nil || unfinished || !done[1] {
			t.Errorf("after %q: %v, open %v, %v", text, done, unfinished, err)
		}
		must(t, j.Close())
	}
}

// A content that is not the one of the index is not committed.
func TestAlteredBlob(t *testing.T) {
	dir, upper, base := t.TempDir(), t.TempDir(), t.TempDir()
	must(t, os.WriteFile(upper+"/f", []byte("new"), 0o644))
	_, err := Pack(open(t, dir), []Tree{{Upper: open(t, upper), Lower: open(t, base), Host: base}}, DefaultBounds())
	must(t, err)
	set, err := Open(open(t, dir))
	must(t, err)
	defer set.Close()
	must(t, os.WriteFile(filepath.Join(dir, BlobDir, set.at(2).New.SHA256), []byte("bad"), 0o644))
	if err := commitAll(t, set, base); err == nil || !strings.Contains(err.Error(), "not the one that was recorded") {
		t.Fatalf("%v", err)
	}
	if left, err := os.ReadDir(base); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}

// A commit that meets a full disk changes nothing, and succeeds when there is room.
func TestCommitDiskFull(t *testing.T) {
	privateMounts(t)
	upper, base := t.TempDir(), t.TempDir()
	must(t, unix.Mount("tmpfs", base, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { must(t, unix.Unmount(base, unix.MNT_DETACH)) })
	for i := range 8 {
		must(t, os.WriteFile(fmt.Sprintf("%s/f%d", upper, i), bytes.Repeat([]byte{byte('a' + i)}, 100<<10), 0o644))
	}
	must(t, os.WriteFile(base+"/f0", []byte("old"), 0o644), os.WriteFile(base+"/ballast", make([]byte, 512<<10), 0o644))
	before := listing(t, base)
	set := plainTree(t, upper, base)
	err := commitAll(t, set, base)
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("%v", err)
	}
	if after := listing(t, base); strings.Join(before, "\n") != strings.Join(after, "\n") {
		t.Errorf("changed:\n%s\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
	must(t, os.Remove(base+"/ballast"))
	must(t, commitAll(t, set, base))
	if b, err := os.ReadFile(base + "/f0"); err != nil || len(b) != 100<<10 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

// Bounds end in findings, never in silence.
func TestBounds(t *testing.T) {
	upper, base := t.TempDir(), t.TempDir()
	for i := range 10 {
		must(t, os.WriteFile(fmt.Sprintf("%s/f%d", upper, i), make([]byte, 1000), 0o644))
	}
	for _, b := range []Bounds{{Entries: 5, Bytes: 1 << 20}, {Entries: 100, Bytes: 5500}} {
		dir := open(t, t.TempDir())
		sum, err := Pack(dir, []Tree{{Upper: open(t, upper), Lower: open(t, base), Host: base}}, b)
		must(t, err)
		set, err := Open(dir)
		must(t, err)
		if len(sum.Findings) != 1 || len(set.Findings) != 1 || !set.Ended || len(set.Entries) > 6 {
			t.Errorf("%+v, %d entries", sum, len(set.Entries))
		}
		must(t, set.Close())
	}
}

// An index that leads anywhere is refused before anything is opened by it.
func TestHostileIndex(t *testing.T) {
	const (
		root = `{"v":1,"n":1,"root":"/x","old":{"type":"dir","mode":493,"uid":0,"gid":0}}` + "\n"
		file = `"new":{"type":"file","mode":420,"uid":0,"gid":0}}` + "\n"
		dir  = `"new":{"type":"dir","mode":493,"uid":0,"gid":0}`
	)
	for name, body := range map[string]string{
		"a slash":             root + `{"n":2,"dir":1,"name":"a/b",` + file,
		"up":                  root + `{"n":2,"dir":1,"name":"..",` + file,
		"no name":             root + `{"n":2,"dir":1,` + file,
		"a NUL":               root + `{"n":2,"dir":1,"name":"a\u0000",` + file,
		"bytes with a slash":  root + `{"n":2,"dir":1,"name":"x","name_b64":"Li4vYQ==",` + file,
		"in itself":           root + `{"n":2,"dir":2,"name":"a",` + file,
		"in a later one":      root + `{"n":2,"dir":3,"name":"a",` + file,
		"out of order":        root + `{"n":2,"dir":1,"name":"a",` + dir + "}\n" + `{"n":3,"dir":1,"name":"b",` + dir + "}\n" + `{"n":4,"dir":2,"name":"c",` + file,
		"another number":      root + `{"n":3,"dir":1,"name":"a",` + file,
		"a relative root":     `{"v":1,"n":1,"root":"x","old":{"type":"dir","mode":493,"uid":0,"gid":0}}` + "\n",
		"no root":             `{"v":1,"n":1,"dir":0,"name":"x",` + file,
		"from above":          root + `{"n":2,"dir":1,"name":"a","from":"../b","base":{"type":"dir","mode":0,"uid":0,"gid":0},` + dir + "}\n",
		"from an absolute":    root + `{"n":2,"dir":1,"name":"a","from":"/etc","base":{"type":"dir","mode":0,"uid":0,"gid":0},` + dir + "}\n",
		"a file from":         root + `{"n":2,"dir":1,"name":"a","from":"b",` + file,
		"a link to a later":   root + `{"n":2,"dir":1,"name":"a","new":{"type":"file","mode":0,"uid":0,"gid":0,"link":3}}` + "\n",
		"a link to a root":    root + `{"n":2,"dir":1,"name":"a","new":{"type":"file","mode":0,"uid":0,"gid":0,"link":1}}` + "\n",
		"a digest with dots":  root + `{"n":2,"dir":1,"name":"a","new":{"type":"file","mode":0,"uid":0,"gid":0,"sha256":"../../etc/passwd"}}` + "\n",
		"another version":     strings.Replace(root, `"v":1`, `"v":2`, 1),
		"an unknown type":     root + `{"n":2,"dir":1,"name":"a","new":{"type":"door","mode":0,"uid":0,"gid":0}}` + "\n",
		"more after the end":  root + `{"n":2,"end":true}` + "\n" + root,
		"no JSON":             root + "{\n",
		"an entry without it": `{"v":1,"n":1,"dir":0}` + "\n",
	} {
		dir := t.TempDir()
		must(t, os.Mkdir(dir+"/"+BlobDir, 0o755), os.WriteFile(dir+"/"+IndexFile, []byte(body), 0o644))
		if s, err := Open(open(t, dir)); err == nil {
			t.Errorf("%s: accepted %+v", name, s.Entries)
			must(t, s.Close())
		}
	}
}

// Whatever an index holds, reading it ends, and what was read can be shown.
func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"v":1,"n":1,"root":"/x","old":{"type":"dir","mode":493,"uid":0,"gid":0}}` + "\n" + `{"n":2,"dir":1,"name":"a","new":{"type":"file","mode":420,"uid":0,"gid":0,"size":3}}` + "\n" + `{"n":3,"end":true}` + "\n"))
	f.Add([]byte(`{"v":1,"n":1,"root":"/x","old":{"type":"dir","mode":493,"uid":0,"gid":0}}` + "\n" + `{"n":2,"dir":1,"name":"b","from":"a","base":{"type":"dir","mode":493,"uid":0,"gid":0},"new":{"type":"dir","mode":493,"uid":0,"gid":0}}` + "\n"))
	dir := f.TempDir()
	if err := os.Mkdir(dir+"/"+BlobDir, 0o755); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		s := &Set{}
		blobs, err := os.Open(dir + "/" + BlobDir)
		must(t, err)
		s.blobs = blobs
		defer s.Close()
		if s.read(bytes.NewReader(body)) != nil {
			return
		}
		var out bytes.Buffer
		list := s.Changes([]string{"*.go"}, nil)
		must(t, WriteText(&out, list), WriteNameStatus(&out, list), WriteJSON(&out, list), (&Patcher{Set: s}).WriteStat(&out, list))
		for _, c := range out.Bytes() {
			if c == 0x1b {
				t.Error("an escape character came through")
			}
		}
	})
}
