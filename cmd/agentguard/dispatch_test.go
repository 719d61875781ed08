package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/action"
)

// canary is the credential: wherever a run leaves something, it must not be.
const canary = "CANARY-5f0e-s3cr3t"

// model is a file with one action against https://api.example.com, with its
// credential from somewhere.
func (w *world) model(name, credential, more string) string {
	w.t.Helper()
	path := filepath.Join(w.dir, name+".yaml")
	text := `actions:
  ` + name + `:
    input: {type: object, additionalProperties: false, required: [prompt], properties: {prompt: {type: string, maxLength: 100}}}
    request: {method: POST, url: "https://api.example.com/v1/complete?tag={prompt}"}
    credential: ` + credential + `
    auth: {scheme: bearer}
    destination: {ca_file: ` + filepath.Join(w.dir, "ca.pem") + more + `}
    limits: {timeout: 90s, response_bytes: 4K, per_minute: 100}
    response: {fields: [/text]}
`
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		w.t.Fatal(err)
	}
	return path
}

// called runs agentguard and returns what it printed.
func (w *world) called(env []string, stdin string, args ...string) (stdout, stderr string, status int) {
	w.t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.Command(w.bin, args...)
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = w.dir, append(os.Environ(), env...), strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		w.t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// ours says of every process of agentguard's that lives what others may see of it.
type ours struct {
	mu     sync.Mutex
	seen   map[string]int // programs, by name and uid
	faults []string
}

func (o *ours) look() {
	o.mu.Lock()
	defer o.mu.Unlock()
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		exe, err := os.Readlink(dir + "/exe")
		if err != nil || filepath.Dir(exe) != programs() || filepath.Base(exe) == "probe" {
			continue
		}
		o.process(dir, filepath.Base(exe))
	}
}

func (o *ours) process(dir, name string) {
	for _, file := range []string{"cmdline", "environ", "comm", "limits"} {
		b, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil || bytes.Contains(b, []byte(canary)) {
			o.faults = append(o.faults, fmt.Sprintf("%s of %s: the credential is there, or %v", file, name, err))
		}
		if file == "limits" && !strings.Contains(string(b), "Max core file size        0                    0") {
			o.faults = append(o.faults, name+" may dump core")
		}
	}
	st, err := os.Stat(dir + "/environ")
	status, err2 := os.ReadFile(dir + "/status")
	if err != nil || err2 != nil {
		o.faults = append(o.faults, fmt.Sprint(name, err, err2))
		return
	}
	_, uid, _ := strings.Cut(string(status), "\nUid:\t")
	uid, _, _ = strings.Cut(uid, "\t")
	if uid != "0" && st.Sys().(*syscall.Stat_t).Uid != 0 { // proc_pid(5): of one that is not dumpable its files are root's
		o.faults = append(o.faults, name+" can be read by others of its user")
	}
	if name == action.HTTPProgram && (uid == "0" || !strings.Contains(string(status), "\nNoNewPrivs:\t1\n") || !strings.Contains(string(status), "\nSeccomp:\t2\n")) {
		o.faults = append(o.faults, name+" has not given up what it does not need")
	}
	o.seen[name+" "+uid]++
}

// upstream answers who has the credential, after it has looked at our processes.
func (w *world) upstream(at string, o *ours) {
	w.https(at, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.hit(at)
		o.look()
		if r.Header.Get("Authorization") != "Bearer "+canary {
			rw.WriteHeader(http.StatusUnauthorized)
			return
		}
		rw.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(rw, `{"text": "done", "key": %q}`, canary)
	}), "api.example.com")
}

// leavesNoSecret looks for the credential in all that is below the directories.
func leavesNoSecret(t *testing.T, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			b, err := os.ReadFile(path)
			if bytes.Contains(b, []byte(canary)) {
				t.Errorf("the credential is in %s", path)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// A credential from each source reaches the upstream and nothing else: neither
// the command, nor what others see of our processes, nor anything that is left.
func TestDispatchLeavesNoSecret(t *testing.T) {
	w := newWorld(t)
	o := &ours{seen: map[string]int{}}
	at := public + "10:443"
	w.upstream(at, o)
	w.name("api.example.com", public+"10")
	secret := t.TempDir()
	must(t, os.WriteFile(filepath.Join(secret, "token"), []byte(canary+"\n"), 0o600))
	key, err := unix.AddKey("user", "agentguard-test-dispatch", []byte(canary), unix.KEY_SPEC_USER_KEYRING)
	must(t, err)
	defer func() {
		_, err := unix.KeyctlInt(unix.KEYCTL_UNLINK, key, unix.KEY_SPEC_USER_KEYRING, 0, 0)
		must(t, err)
	}()
	must(t, unix.KeyctlSetperm(key, 0x3f3f0000)) // a session of the test's own need not possess it
	for i, c := range []struct {
		name, credential string
		env              []string
	}{
		{"file", "{file: " + secret + "/token}", nil},
		{"systemd", "{systemd: token}", []string{"CREDENTIALS_DIRECTORY=" + secret}},
		{"command", "{command: [/bin/cat, " + secret + "/token]}", nil},
		{"keyring", "{keyring: \"user:agentguard-test-dispatch\"}", nil},
		{"env", "{env: MODEL_TOKEN}", []string{"MODEL_TOKEN=" + canary}},
	} {
		path := w.model(c.name, c.credential, "")
		out, errs, status := w.called(nil, "", "actions", "approve", path)
		if status != 0 {
			t.Fatalf("%s: %s%s", c.name, out, errs)
		}
		result := filepath.Join(w.dir, c.name+".json")
		// The command looks where a credential could be, and sends what it finds.
		script := `printf '{"prompt": "%s"}' "$( (env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline) 2>/dev/null | tr -dc A-Za-z0-9 | grep -ao CANARY | head -1)"`
		out, errs, status = w.called(c.env, "", "exec", "--mode", "ro", "-v", "--json", result, "--actions", path, "--dispatch", c.name, "--", "sh", "-c", script)
		if status != 0 || !strings.Contains(out, `"/text":"done"`) || w.hitsOf(at) != i+1 {
			t.Errorf("%s: %d %s%s", c.name, status, out, errs)
		}
		if strings.Contains(out+errs, canary) {
			t.Errorf("%s: the credential was printed", c.name)
		}
		input, err := os.ReadFile(result)
		must(t, err)
		if bytes.Contains(input, []byte(`tag=CANARY`)) {
			t.Errorf("%s: the command has found the credential", c.name)
		}
	}
	leavesNoSecret(t, stateDir, w.dir)
	if len(o.faults) > 0 {
		t.Errorf("%s", strings.Join(o.faults, "\n"))
	}
	if len(o.seen) != 2 || o.seen["agentguard 0"] != 5 {
		t.Errorf("looked at %v", o.seen)
	}
}

// Under sudo an action of /etc has root's authority over its credential, and
// nothing else does.
func TestDispatchAuthority(t *testing.T) {
	w := newWorld(t)
	o := &ours{seen: map[string]int{}}
	w.upstream(public+"11:443", o)
	w.name("api.example.com", public+"11")
	secret, etc := t.TempDir(), filepath.Join(t.TempDir(), "etc")
	must(t, os.WriteFile(filepath.Join(secret, "token"), []byte(canary), 0o600))
	path := w.model("complete", "{file: "+secret+"/token}", "")
	script := `set -e; cp -a /etc "$1"; mkdir -p "$1/agentguard/actions"; cp "$2" "$1/agentguard/actions/"`
	if out, err := exec.Command("sh", "-c", script, "sh", etc, path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	sudo := []string{"SUDO_UID=54321", "SUDO_GID=54321", "SUDO_USER=nobody-here"}
	withEtc := func(args ...string) (string, string, int) {
		bin := w.bin
		w.bin = "/usr/bin/unshare"
		defer func() { w.bin = bin }()
		return w.called(sudo, `{"prompt": "hello"}`, append([]string{"-m", "sh", "-c", `mount --bind "$1" /etc && shift && exec "$@"`, "sh", etc, bin}, args...)...)
	}
	out, errs, status := withEtc("dispatch", "complete")
	if status != 0 || !strings.Contains(out, `"/text":"done"`) {
		t.Errorf("of /etc: %d %s%s", status, out, errs)
	}
	for who := range o.seen {
		if who == action.HTTPProgram+" 54321" {
			t.Error("the process that has root's credential is of the caller's uid")
		}
	}
	ceiling := filepath.Join(etc, "agentguard/ceiling.yaml")
	for text, want := range map[string]int{"ceiling: {secrets: none}": 125, "ceiling: {secrets: [other]}": 125, "ceiling: {secrets: [complete]}": 0} {
		must(t, os.WriteFile(ceiling, []byte(text), 0o644))
		for _, args := range [][]string{{"dispatch", "complete"}, {"exec", "--mode", "ro", "--dispatch", "complete", "--", "echo", `{"prompt": "hello"}`}} {
			if out, errs, status := withEtc(args...); status != want || want != 0 && !strings.Contains(errs, "complete") {
				t.Errorf("%s: %q: %d %s%s", text, args, status, out, errs)
			}
		}
	}
	must(t, os.Remove(ceiling))
	must(t, os.Chmod(filepath.Join(etc, "agentguard/actions/complete.yaml"), 0o666))
	if _, errs, status = withEtc("dispatch", "complete"); status != 125 || !strings.Contains(errs, "others than root may change it") {
		t.Errorf("a file that others can write: %d %s", status, errs)
	}
	// The same file, approved by the caller: the credential is not the caller's to read.
	if out, errs, status = w.called(sudo, "", "actions", "approve", path); status != 0 {
		t.Fatalf("%s%s", out, errs)
	}
	hits := w.hitsOf(public + "11:443")
	if out, errs, status = w.called(sudo, `{"prompt": "hello"}`, "dispatch", "-f", path, "complete"); status != action.StatusLimited || !strings.Contains(errs, "permission denied") {
		t.Errorf("the caller's own: %d %s%s", status, out, errs)
	}
	if w.hitsOf(public+"11:443") != hits {
		t.Error("it was sent")
	}
	leavesNoSecret(t, stateDir)
}

// Where a name leads is judged when it is dialled; what an upstream is, when it
// answers.
func TestDispatchDestinations(t *testing.T) {
	w := newWorld(t)
	secret := t.TempDir()
	must(t, os.WriteFile(filepath.Join(secret, "token"), []byte(canary), 0o600))
	o := &ours{seen: map[string]int{}}
	for _, at := range []string{public + "12:443", "169.254.169.254:443", "127.0.0.1:443"} {
		w.upstream(at, o)
	}
	w.https(public+"13:443", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), "other.example.com")
	plain, err := listenPlain(w, public+"10:443")
	must(t, err)
	path := w.model("complete", "{file: "+secret+"/token}", "")
	pinned := w.model("pinned", "{file: "+secret+"/token}", ", resolve: 127.0.0.1")
	for _, p := range []string{path, pinned} {
		if out, errs, status := w.called(nil, "", "actions", "approve", p); status != 0 {
			t.Fatalf("%s%s", out, errs)
		}
	}
	for _, c := range []struct {
		what  string
		addrs []string
		want  string // "": done
		sent  string
	}{
		{"a public address", []string{public + "12"}, "", action.SentYes},
		{"the metadata service", []string{"169.254.169.254"}, "private or special addresses only", action.SentNo},
		{"loopback", []string{"127.0.0.1"}, "private or special addresses only", action.SentNo},
		{"loopback in other clothes", []string{"::ffff:127.0.0.1", "::1", "64:ff9b::7f00:1"}, "private or special addresses only", action.SentNo},
		{"one of each", []string{"127.0.0.1", public + "12"}, "", action.SentYes},
		{"nowhere", nil, "the name was not resolved", action.SentNo},
		{"another's certificate", []string{public + "13"}, "certificate", action.SentNo},
		{"no TLS", []string{public + "10"}, "", action.SentNo},
	} {
		w.name("api.example.com", c.addrs...)
		if c.addrs == nil {
			w.mu.Lock()
			delete(w.zone, "api.example.com")
			w.mu.Unlock()
		}
		out, errs, status := w.called(nil, `{"prompt": "hello"}`, "dispatch", "-f", path, "complete")
		var got action.Outcome
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Errorf("%s: %v %s%s", c.what, err, out, errs)
			continue
		}
		if got.Sent != c.sent || !strings.Contains(got.Why, c.want) || (status == 0) != (c.sent == action.SentYes) {
			t.Errorf("%s: %d %s%s", c.what, status, out, errs)
		}
	}
	if out, errs, status := w.called(nil, `{"prompt": "hello"}`, "dispatch", "-f", pinned, "pinned"); status != 0 || w.hitsOf("127.0.0.1:443") != 1 {
		t.Errorf("pinned: %d %s%s", status, out, errs)
	}
	if n := w.hitsOf("169.254.169.254:443"); n != 0 {
		t.Errorf("the metadata service was asked %d times", n)
	}
	if b := plain(); bytes.Contains(b, []byte(canary)) {
		t.Errorf("the credential went over plain text: %q", b)
	}
}

// listenPlain keeps what is sent to a server that has no TLS.
func listenPlain(w *world, at string) (func() []byte, error) {
	l, err := net.Listen("tcp", at)
	if err != nil {
		return nil, err
	}
	w.t.Cleanup(func() { l.Close() })
	var mu sync.Mutex
	var all []byte
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			buf := make([]byte, 4096)
			n, _ := c.Read(buf)
			mu.Lock()
			all = append(all, buf[:n]...)
			mu.Unlock()
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			c.Close()
		}
	}()
	return func() []byte { mu.Lock(); defer mu.Unlock(); return bytes.Clone(all) }, nil
}
