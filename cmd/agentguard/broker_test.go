package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/agentguard/agentguard/internal/runs"
)

// brokerCanary is the credential of the tests: nothing that a run leaves may have it.
const brokerCanary = "sk-CANARY-7d81/Qp+kd93hh2kaQzz01"

// sdk is a program of the shape that the SDKs of models have: it takes a base URL and a key
// from its environment, and does not know that anything stands between.
const sdk = `
import json, os, sys, urllib.request
base, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
def call(path, body=None):
    r = urllib.request.Request(base + path, data=body and json.dumps(body).encode(),
        headers={"Authorization": "Bearer " + key, "Content-Type": "application/json", "User-Agent": "sdk/1.0"})
    return urllib.request.urlopen(r, timeout=60)
ask = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
print("answer:", json.load(call("/chat/completions", ask))["choices"][0]["message"]["content"])
words = []
for line in call("/chat/completions", dict(ask, stream=True)):
    line = line.decode().strip()
    if not line.startswith("data: ") or line == "data: [DONE]": continue
    words.append(json.loads(line[6:])["choices"][0]["delta"]["content"])
    if len(words) == 1: call("/models/continue").read() # the rest comes when the first was read
print("stream:", " ".join(words))
`

// model is an upstream that streams, and echoes the credential wherever it can.
type model struct {
	w       *world
	paths   []string
	mu      sync.Mutex
	auth    map[string]int
	proceed chan struct{}
	during  atomic.Pointer[func()] // called while a stream is under way
}

func (m *model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	auth := r.Header.Get("Authorization")
	m.mu.Lock()
	m.paths = append(m.paths, r.Method+" "+r.RequestURI)
	m.auth[auth]++
	m.mu.Unlock()
	h := w.Header()
	h.Set("Set-Cookie", "session="+brokerCanary)
	h.Set("X-Request-Id", "for "+auth)
	h.Set("WWW-Authenticate", "Bearer "+brokerCanary)
	switch {
	case strings.HasSuffix(r.URL.Path, "/continue"):
		m.proceed <- struct{}{}
	case strings.HasSuffix(r.URL.Path, "/redirect"):
		http.Redirect(w, r, "https://203.0.113.11/?k="+brokerCanary, http.StatusTemporaryRedirect)
	case strings.HasSuffix(r.URL.Path, "/denied"):
		http.Error(w, "Incorrect API key provided: "+auth, http.StatusUnauthorized)
	case strings.HasSuffix(r.URL.Path, "/echo"):
		fmt.Fprintf(w, "%s %s %s", auth, base64.StdEncoding.EncodeToString([]byte(auth)), r.Header)
	case strings.Contains(string(body), `"stream": true`):
		h.Set("Content-Type", "text/event-stream")
		for i, word := range []string{"one", "two", "three"} {
			fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":%q}}]}\n\n", word)
			w.(http.Flusher).Flush()
			if i == 0 {
				<-m.proceed
				if during := m.during.Load(); during != nil {
					(*during)()
				}
			}
		}
		fmt.Fprint(w, "data: [DONE]\n\n")
	default:
		h.Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"choices":[{"message":{"content":"hi there"}}]}`)
	}
}

const brokerFile = `brokers:
  model:
    about: a model server of the tests
    upstream: https://api.model.example
    allow:
      - POST /v1/chat/completions
      - GET,HEAD /v1/models/{id}
    credential: {file: %q}
    auth: {scheme: bearer}
    destination: {ca_file: %q}
    limits: {per_run: 20, timeout: 60s}
`

// brokered is a world with a model server and an approved file of a broker for it.
type brokered struct {
	*world
	model *model
	file  string
	state string
	flags []string // that grant brokers
}

func newBrokered(t *testing.T) *brokered {
	t.Helper()
	b := &brokered{world: newWorld(t), flags: []string{"--broker", "model"}}
	b.model = &model{w: b.world, auth: map[string]int{}, proceed: make(chan struct{}, 10)}
	b.https("203.0.113.10:443", b.model, "api.model.example")
	b.name("api.model.example", "203.0.113.10")
	for _, at := range []string{"203.0.113.10:80", "203.0.113.11:443", "203.0.113.11:80", "169.254.169.254:80"} {
		b.tcp(at)
	}
	dir := t.TempDir()
	b.state, b.file = filepath.Join(dir, "state"), filepath.Join(dir, "brokers.yaml")
	key := filepath.Join(dir, "key")
	b.put(key, brokerCanary+"\n")
	b.put(b.file, fmt.Sprintf(brokerFile, key, filepath.Join(b.dir, "ca.pem")))
	b.approve()
	return b
}

func (b *brokered) put(path, text string) {
	b.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

func (b *brokered) approve() {
	b.t.Helper()
	if out, err := exec.Command(b.bin, "actions", "approve", "--state", b.state, b.file).CombinedOutput(); err != nil {
		b.t.Fatalf("%v\n%s", err, out)
	}
}

// start runs a program of the workspace with the broker.
func (b *brokered) start(program string, during func(supervisor int)) (out string, res *runs.Result) {
	b.t.Helper()
	b.write("program.py", program)
	result := filepath.Join(b.t.TempDir(), "result.json")
	cmd := b.command("--json", result, "--wall", "120s", "--env", "OPENAI_BASE_URL=http://model.broker.internal/v1", "--env", "OPENAI_API_KEY=unused",
		"--", "/usr/bin/python3", "program.py")
	var all bytes.Buffer
	cmd.Stdout, cmd.Stderr = &all, &all
	pid := make(chan int, 1)
	if during != nil {
		seen := func() { during(<-pid) }
		b.model.during.Store(&seen)
	}
	err := cmd.Start()
	if err == nil {
		pid <- cmd.Process.Pid
		err = cmd.Wait()
	}
	b.t.Logf("%v\n%s", err, all.String())
	j, err := os.ReadFile(result)
	if err != nil {
		b.t.Fatal(err)
	}
	res = &runs.Result{}
	if err := json.Unmarshal(j, res); err != nil {
		b.t.Fatal(err)
	}
	b.clean(result, string(j))
	return all.String(), res
}

// command is exec with the brokers granted.
func (b *brokered) command(args ...string) *exec.Cmd {
	return exec.Command(b.bin, slices.Concat([]string{"exec", "--state", b.state, "--on-loss", "throttle", "-w", b.dir, "--actions", b.file}, b.flags, args)...)
}

// refused is what a run that is not to be is answered with.
func (b *brokered) refused() (out string, status int) {
	cmd := b.command("--", "true")
	text, _ := cmd.CombinedOutput() // the status is the caller's to judge
	return string(text), cmd.ProcessState.ExitCode()
}

// clean looks for the credential, and its usual forms, in a text.
func (b *brokered) clean(what, text string) {
	b.t.Helper()
	for _, form := range []string{
		brokerCanary, brokerCanary[:20], strings.ReplaceAll(brokerCanary, "/", `\/`), fmt.Sprintf("%x", brokerCanary),
		base64.StdEncoding.EncodeToString([]byte(brokerCanary)), base64.StdEncoding.EncodeToString([]byte("Bearer " + brokerCanary))[:30],
	} {
		if strings.Contains(text, form) {
			b.t.Errorf("%s has the credential", what)
		}
	}
}

// cleanBelow looks through all files below a directory.
func (b *brokered) cleanBelow(dir string) {
	b.t.Helper()
	files := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		files++
		b.clean(path, string(text))
		return err
	})
	if err != nil || files < 5 {
		b.t.Errorf("%d files below %s: %v", files, dir, err)
	}
}

// The worked example: a program of the SDKs' shape, streaming too, and a process
// of the brokers that nobody can look into.
func TestBrokerSDK(t *testing.T) {
	b := newBrokered(t)
	var looked atomic.Bool
	out, res := b.start(sdk, func(supervisor int) {
		looked.Store(true)
		b.lookInto(supervisor)
	})
	if !strings.Contains(out, "answer: hi there\n") || !strings.Contains(out, "stream: one two three\n") || !looked.Load() || res.Status != 0 {
		t.Fatalf("status %d: %s", res.Status, out)
	}
	if b.model.auth["Bearer "+brokerCanary] != 3 || len(b.model.auth) != 1 {
		t.Errorf("the upstream saw %v", b.model.auth)
	}
	if len(res.Brokers) != 1 || res.Brokers[0].Calls != 3 || res.Brokers[0].Refused != 0 || res.Brokers[0].Received == 0 || res.Record.Verdict != "complete" {
		t.Errorf("%+v %+v", res.Brokers, res.Record)
	}
	b.clean("the output", out)
	b.cleanBelow(b.state)
	b.clean("the plan", b.plan())
	shown, err := exec.Command(b.bin, "trace", "show", "--state", b.state, "last").CombinedOutput()
	if err != nil || !strings.Contains(string(shown), "call model POST /v1/chat/completions 200") || !strings.Contains(string(shown), "GET '/v1/models/{id}' 200") {
		t.Errorf("%v\n%s", err, shown)
	}
	b.clean("the view", string(shown))
}

func (b *brokered) plan() string {
	b.t.Helper()
	out, err := b.command("--dry-run", "--", "true").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "http://model.broker.internal is https://api.model.example:443, at most 20 calls") || strings.Contains(string(out), "egress     ") {
		b.t.Errorf("%v\n%s", err, out)
	}
	return string(out)
}

// brokerOf finds the process of the brokers of a run.
func (b *brokered) brokerOf(supervisor int) (pid int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		line, _ := os.ReadFile(d + "/cmdline")
		status, _ := os.ReadFile(d + "/status")
		if string(line) == "agentguard-broker\x00broker\x00" && strings.Contains(string(status), fmt.Sprintf("\nPPid:\t%d\n", supervisor)) {
			pid, _ = strconv.Atoi(filepath.Base(d))
		}
	}
	return pid
}

// lookInto looks at that process from outside, while it holds the credential.
func (b *brokered) lookInto(supervisor int) {
	pid := b.brokerOf(supervisor)
	if pid == 0 {
		b.t.Error("there is no process of the brokers")
		return
	}
	at := fmt.Sprintf("/proc/%d/", pid)
	status, err := os.ReadFile(at + "status")
	if err != nil {
		b.t.Error(err)
		return
	}
	for _, want := range []string{"CapEff:\t0000000000000000\n", "CapPrm:\t0000000000000000\n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n"} {
		if !strings.Contains(string(status), want) {
			b.t.Errorf("no %q in %s", want, status)
		}
	}
	_, line, _ := strings.Cut(string(status), "\nUid:\t")
	uid, _ := strconv.Atoi(strings.Fields(line)[0])
	if uid == 0 {
		b.t.Error("it runs as root")
	}
	environ, err := os.ReadFile(at + "environ")
	// What it was started with are the numbers that it has become, and nothing of anybody's.
	if want := fmt.Sprintf("AGENTGUARD_IDS=%d %d\x00", uid, uid); err != nil || string(environ) != want {
		b.t.Errorf("its environment: %q %v", environ, err)
	}
	for _, name := range []string{"mem", "environ", "maps"} { // what may be read may be traced (ptrace(2))
		cmd := exec.Command("/bin/cat", at+name)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "Permission denied") {
			b.t.Errorf("its user reads %s: %v %.80q", name, err, out)
		}
	}
	fds, _ := filepath.Glob(at + "fd/*")
	for _, fd := range fds {
		to, _ := os.Readlink(fd)
		if strings.HasPrefix(to, "/") && to != "/dev/null" && !strings.HasPrefix(to, "/sys/fs/cgroup/") { // Go's runtime watches its CPU limit
			b.t.Errorf("it has %s open", to)
		}
	}
}
