package action

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/internal/testenv"
)

func addr(t *testing.T, s string) netip.Addr {
	t.Helper()
	a, err := netip.ParseAddr(s)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

const canary = "CANARY-s3cr3t-value"

// actVar makes the test program this: one that takes a variable out of itself.
const actVar = "AGENTGUARD_TEST_TAKE"

func act() int {
	value, found, err := TakeEnv("TAKEN")
	environ, rerr := os.ReadFile("/proc/self/environ")
	fmt.Println(value == canary, found, err, rerr, os.Getenv("TAKEN") == "", bytes.Contains(environ, []byte(canary)), bytes.Contains(environ, []byte("AFTER=here")))
	return 0
}

func TestTakeEnv(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{actVar + "=1", "BEFORE=there", "TAKEN=" + canary, "AFTER=here"}
	out, err := cmd.CombinedOutput()
	if got := strings.TrimSpace(string(out)); err != nil || got != "true true <nil> <nil> true false true" {
		t.Errorf("%v %s", err, got)
	}
}

func me() *Reader {
	return &Reader{
		UID: os.Geteuid(), GID: os.Getegid(), As: func(f func() error) error { return f() }, Environ: os.Environ(),
		Take: func(name string) (string, bool) { return canary, name == "TAKEN" },
	}
}

func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(write("plain", canary+"\n", 0o600), link); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, want string }{
		{write("ok", canary+"\n", 0o600), ""},
		{write("readonly", canary, 0o400), ""},
		{write("world", canary, 0o604), "its mode is 0604"},
		{write("group", canary, 0o640), "its mode is 0640"},
		{write("empty", "\n", 0o600), "it is empty"},
		{write("large", strings.Repeat("x", maxSecret+1), 0o600), "larger than"},
		{link, "symbolic link"},
		{dir, "not a regular file"},
		{filepath.Join(dir, "none"), "no such file"},
	} {
		s, err := me().Read(context.Background(), &Credential{Kind: FromFile, Name: c.path})
		if c.want == "" {
			if err != nil || string(s.Reveal()) != canary {
				t.Errorf("%s: %v", c.path, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), canary) {
			t.Errorf("%s: %v; want %q", c.path, err, c.want)
		}
	}
	r := me()
	if r.UID == 0 {
		path := write("others", canary, 0o600)
		if err := os.Chown(path, 12345, 12345); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Read(context.Background(), &Credential{Kind: FromFile, Name: path}); err == nil || !strings.Contains(err.Error(), "belongs to uid 12345") {
			t.Errorf("another's file: %v", err)
		}
	}
}

func TestReadOthers(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "forge"), []byte(canary), 0o440); err != nil {
		t.Fatal(err)
	}
	r := me()
	r.Environ = append(r.Environ, "CREDENTIALS_DIRECTORY="+dir)
	sh := func(script string) *Credential {
		return &Credential{Kind: FromCommand, Command: []string{"/bin/sh", "-c", script}}
	}
	for _, c := range []struct {
		c    *Credential
		want string
	}{
		{&Credential{Kind: FromSystemd, Name: "forge"}, ""},
		{&Credential{Kind: FromSystemd, Name: "none"}, "no such file"},
		{&Credential{Kind: FromEnv, Name: "TAKEN"}, ""},
		{&Credential{Kind: FromEnv, Name: "NONE"}, "not set"},
		{sh("echo " + canary + "; echo user: me"), ""},
		{sh("echo " + canary + " >&2; exit 3"), "exit status 3"},
		{sh("while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done"), "printed more than"},
		{sh(`[ -z "$AGENTGUARD_X" ] && echo ` + canary), ""},
		{&Credential{Kind: FromCommand, Command: []string{"/no/such/program"}}, "no such file"},
		{&Credential{Kind: FromKeyring, Name: "user:agentguard-test-no-such-key"}, "keyctl search"},
	} {
		t.Setenv("AGENTGUARD_X", "1")
		s, err := r.Read(context.Background(), c.c)
		if c.want == "" {
			if err != nil || string(s.Reveal()) != canary {
				t.Errorf("%s: %v", c.c.Shown(), err)
			}
		} else if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), canary) {
			t.Errorf("%s: %v; want %q", c.c.Shown(), err, c.want)
		}
	}
}

// However a secret is printed, it is not there.
func TestSecretHides(t *testing.T) {
	s := NewSecret([]byte(canary))
	b, err := json.Marshal(map[string]any{"s": s})
	if err != nil {
		t.Fatal(err)
	}
	for _, out := range []string{string(b), fmt.Sprint(s), fmt.Sprintf("%v %+v %#v %s %q", s, s, s, s, s)} {
		if strings.Contains(out, canary) || !strings.Contains(out, Hidden) {
			t.Error(out)
		}
	}
	kept := s.Reveal()
	s.Erase()
	if s.Reveal() != nil || string(kept) != strings.Repeat("\x00", len(canary)) {
		t.Error("it was not overwritten")
	}
}

func TestApply(t *testing.T) {
	secret := NewSecret([]byte("k"))
	for _, c := range []struct {
		a    Auth
		want Proof
	}{
		{Auth{Scheme: Bearer, Header: "Authorization"}, Proof{Header: "Authorization", Value: "Bearer k"}},
		{Auth{Scheme: Basic, Header: "Authorization", User: "u"}, Proof{Header: "Authorization", Value: "Basic dTpr"}},
		{Auth{Scheme: Named, Header: "X-Api-Key", Prefix: "token "}, Proof{Header: "X-Api-Key", Value: "token k"}},
		{Auth{Scheme: Query, Query: "key"}, Proof{Query: "key", Value: "k"}},
		// printf b | openssl dgst -sha256 -hmac k
		{Auth{Scheme: HMAC, Header: "X-Sig", Prefix: "sha256="}, Proof{Header: "X-Sig", Value: "sha256=2fb39898cf6b5cadbde2377d14dbc7331caaf0825d59106d090deeb785aaa389"}},
	} {
		got, err := c.a.Apply(secret, []byte("b"))
		if err != nil || got != c.want {
			t.Errorf("%s: %+v %v", c.a.Scheme, got, err)
		}
		if strings.Contains(c.a.Shown().Value, "k") && c.a.Scheme != Named {
			t.Errorf("%s shows %q", c.a.Scheme, c.a.Shown().Value)
		}
	}
	if _, err := (Auth{Scheme: Bearer}).Apply(NewSecret([]byte("a\nb")), nil); err == nil {
		t.Error("a line break went into a header")
	}
}

func TestLoad(t *testing.T) {
	testenv.Root(t)
	dir := filepath.Join(t.TempDir(), "actions")
	if files, err := Load(dir); err != nil || files != nil {
		t.Errorf("no directory: %v %v", files, err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "a.yaml")
	if err := os.WriteFile(path, []byte(good), 0o644); err != nil {
		t.Fatal(err)
	}
	if files, err := Load(dir); err != nil || len(files) != 1 || files[0].Name != path {
		t.Fatalf("%v %v", files, err)
	}
	for _, c := range []struct {
		spoil, mend func() error
		want        string
	}{
		{func() error { return os.Chmod(path, 0o666) }, func() error { return os.Chmod(path, 0o644) }, "others than root may change it"},
		{func() error { return os.Chown(path, 12345, 0) }, func() error { return os.Chown(path, 0, 0) }, "belongs to uid 12345"},
		{func() error { return os.Chmod(dir, 0o777) }, func() error { return os.Chmod(dir, 0o755) }, "others than root may change it"},
		{func() error { return os.Chmod(filepath.Dir(dir), 0o777) }, func() error { return os.Chmod(filepath.Dir(dir), 0o755) }, "others than root may change it"},
		{func() error { return os.Symlink(path, filepath.Join(dir, "b.yaml")) }, func() error { return os.Remove(filepath.Join(dir, "b.yaml")) }, "symbolic link"},
	} {
		if err := c.spoil(); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v; want %q", err, c.want)
		}
		if err := c.mend(); err != nil {
			t.Fatal(err)
		}
	}
}
