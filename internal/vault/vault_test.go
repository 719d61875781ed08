package vault

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/agentguard/agentguard/internal/testenv"
	"github.com/agentguard/agentguard/trace/seal"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

func open(t *testing.T, dir string) *Vault {
	t.Helper()
	home, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer home.Close()
	v, err := Open(home)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	return v
}

func key(t *testing.T, v *Vault) *seal.Key {
	t.Helper()
	k, err := v.Key("agentguard/test")
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func readLog(t *testing.T, v *Vault) *seal.Log {
	t.Helper()
	keys, err := v.Public()
	if err != nil {
		t.Fatal(err)
	}
	l, err := v.Log(keys)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func add(t *testing.T, v *Vault, k *seal.Key, run string) Placed {
	t.Helper()
	p, err := v.Append(k, &seal.LogEntry{Kind: seal.LogStart, Run: run}, false)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Eight writers at once, each with a vault of its own, as supervisors have, and
// the first of them makes the key.
func TestConcurrentAppend(t *testing.T) {
	dir := t.TempDir()
	const lanes, each = 8, 25
	var wait sync.WaitGroup
	places := make(chan Placed, lanes*each)
	for lane := range lanes {
		v := open(t, dir)
		wait.Go(func() {
			k, err := v.Key("agentguard/test")
			if err != nil {
				t.Error(err)
				return
			}
			for i := range each {
				signer := k
				if i%2 == 0 {
					signer = nil
				}
				p, err := v.Append(signer, &seal.LogEntry{Kind: seal.LogStart, Run: fmt.Sprintf("run-%d-%d", lane, i)}, i == 3)
				if err != nil {
					t.Error(err)
				}
				places <- p
			}
		})
	}
	wait.Wait()
	close(places)
	v := open(t, dir)
	l := readLog(t, v)
	if len(l.Faults) > 0 || len(l.Gaps) > 0 || l.Head.Size < lanes*each-lanes || len(l.Runs) != lanes*each {
		t.Fatalf("%d entries, %d runs, %v %v", l.Head.Size, len(l.Runs), l.Faults, l.Gaps)
	}
	for p := range places {
		if why := l.Contradicts(&p.Place); why != "" {
			t.Error(why)
		}
	}
	if text, _ := v.PublicText(); strings.Count(text, "\n") != 1 {
		t.Errorf("more than one key was made:\n%s", text)
	}
}

// A writer that was killed anywhere leaves a log that the next one goes on with.
func TestKilledWriter(t *testing.T) {
	dir := t.TempDir()
	v := open(t, dir)
	k := key(t, v)
	for i := range 5 {
		add(t, v, k, fmt.Sprint("r", i))
	}
	whole, _ := (&seal.LogEntry{Kind: seal.LogSeal, Run: "r4", SHA256: "abc"}).Line()
	for _, tail := range []string{string(whole), string(whole[:20]), string(whole) + string(whole[:7]), "\x00\x00\x00", "nonsense\n"} {
		before := readLog(t, v).Head.Size
		f, err := os.OpenFile(dir+"/log/entries", os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		f.WriteString(tail)
		f.Close()
		add(t, v, k, "next")
		l := readLog(t, v)
		kept := int64(strings.Count(tail, string(whole)))
		if len(l.Faults) > 0 || len(l.Gaps) > 0 || l.Head.Size != before+kept+1 {
			t.Errorf("after %q: %d entries, were %d; %v %v", tail, l.Head.Size, before, l.Faults, l.Gaps)
		}
	}
}

// What a log leaves can be printed.
func TestLogIsText(t *testing.T) {
	dir := t.TempDir()
	v := open(t, dir)
	k := key(t, v)
	for i := range 20 {
		add(t, v, k, fmt.Sprint("r", i))
	}
	for _, name := range []string{"entries", "hashes", "head"} {
		data, err := os.ReadFile(filepath.Join(dir, "log", name))
		if err != nil || len(data) == 0 {
			t.Fatal(name, len(data), err)
		}
		for i, c := range data {
			if (c < ' ' || c == 0x7f) && c != '\n' && c < 0x80 { // a signed note has an em dash
				t.Fatalf("%s: byte %#x at %d", name, c, i)
			}
		}
	}
}

// A log that lost its end, or was changed, goes on and says so.
func TestDamagedLog(t *testing.T) {
	damage := map[string]func(dir string) error{
		"cut":       func(d string) error { return os.Truncate(d+"/entries", 100) },
		"no hashes": func(d string) error { return os.Truncate(d+"/hashes", 0) },
		"bad head":  func(d string) error { return os.WriteFile(d+"/head", []byte("x"), 0o600) },
	}
	for name, do := range damage {
		dir := t.TempDir()
		v := open(t, dir)
		k := key(t, v)
		var last Placed
		for i := range 9 {
			last = add(t, v, k, fmt.Sprint("r", i))
		}
		if err := do(dir + "/log"); err != nil {
			t.Fatal(err)
		}
		add(t, v, k, "after")
		add(t, v, k, "later")
		l := readLog(t, v)
		if len(l.Faults) > 0 || len(l.Gaps) != 1 || l.Runs[seal.RunID{ID: "later"}] == nil {
			t.Errorf("%s: %v %v", name, l.Faults, l.Gaps)
		}
		if gone := l.Contradicts(&last.Place) != ""; gone != (name == "cut") {
			t.Errorf("%s: contradicted: %v", name, gone)
		}
	}
}

// Bits that flip in what is read back by an auditor are found.
func TestAlteredLog(t *testing.T) {
	dir := t.TempDir()
	v := open(t, dir)
	k := key(t, v)
	for i := range 9 {
		add(t, v, k, fmt.Sprint("r", i))
	}
	good, err := os.ReadFile(dir + "/log/entries")
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(3, 4))
	for range 100 {
		b := bytes.Clone(good)
		b[r.IntN(len(b))] ^= 1 << r.IntN(8)
		if err := os.WriteFile(dir+"/log/entries", b, 0o600); err != nil {
			t.Fatal(err)
		}
		if l := readLog(t, v); len(l.Faults) == 0 {
			t.Fatalf("taken:\n%s", b)
		}
	}
}

func TestRotate(t *testing.T) {
	v := open(t, t.TempDir())
	old := key(t, v)
	add(t, v, old, "a")
	now, err := v.Rotate("agentguard/test2")
	if err != nil {
		t.Fatal(err)
	}
	if again := key(t, v); again.Public() != now.Public() || again.Public() == old.Public() {
		t.Error("the new key is not the one in use")
	}
	add(t, v, now, "b")
	if keys, err := v.Public(); err != nil || len(keys) != 2 {
		t.Errorf("%d keys, %v", len(keys), err)
	}
	if l := readLog(t, v); len(l.Faults) > 0 || len(l.Gaps) > 0 || l.Head.Size != 3 {
		t.Errorf("%v %v", l.Faults, l.Gaps)
	}
}

func TestOthersCannotEnter(t *testing.T) {
	dir := t.TempDir()
	v := open(t, dir)
	key(t, v)
	st, err := os.Stat(filepath.Join(dir, "keys/host"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", st.Mode(), err)
	}
	if err := os.Chmod(dir+"/keys", 0o750); err != nil {
		t.Fatal(err)
	}
	home, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer home.Close()
	if _, err := Open(home); err == nil || !strings.Contains(err.Error(), "mode 0700") {
		t.Errorf("opened: %v", err)
	}
}
