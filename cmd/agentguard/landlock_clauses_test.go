package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/policy"
)

// written is what becomes of a clause that somebody has written where the word alone was accepted:
// it is refused, with this text; or kept, as the output and the status of a script show.
type written struct {
	flags   string // split at blanks
	yaml    string // the clause in a policy file, in flow style
	refused string // in the refusal, its name as a rule
	script  string // of sh; "": nothing is run
	out     string
	status  int
}

// Every key of a policy, in the one mode that lacks most. WORK is the workspace, FILES
// a directory of the host's with the file "f".
var landlockKeys = map[string][]written{
	"runtime":                     {{yaml: "runtime: microvm", refused: "microvm"}},
	"filesystem.read_only_mounts": {{flags: "--ro FILES", script: "cat FILES/f; echo x 2>/dev/null >FILES/f || echo kept", out: "f\nkept\n"}, {flags: "--ro FILES:/elsewhere", refused: "filesystem.read_only_mounts"}},
	"filesystem.writable_mounts":  {{flags: "--rw FILES", script: "echo x >FILES/new && cat FILES/new", out: "x\n"}, {flags: "--rw FILES:/elsewhere", refused: "filesystem.writable_mounts"}},
	"filesystem.cow_mounts":       {{flags: "--cow FILES", refused: "filesystem.cow_mounts"}},
	"filesystem.workspace.path":   {{flags: "--workspace FILES", script: "cat f", out: "f\n"}},
	"filesystem.workspace.mode":   {{flags: "--mode cow", refused: "filesystem.workspace.mode"}, {flags: "--mode ro", script: "echo x 2>/dev/null >new || echo kept", out: "kept\n"}},
	"filesystem.toolchains":       {{flags: "--toolchains FILES/tool", refused: "filesystem.toolchains"}, {flags: "--toolchains none", script: "cat FILES/tool/bin/run 2>/dev/null || echo none", out: "none\n"}},
	"filesystem.caches":           {{flags: "--cache npm", refused: "filesystem.caches"}},
	"filesystem.max_output_bytes": {{flags: "--output 1M", refused: "filesystem.max_output_bytes"}, {flags: "--mode rw --output 1M", refused: "filesystem.workspace.mode"}},
	"filesystem.max_file_bytes":   {{flags: "--file-size 1K", script: "ulimit -f", out: "2\n"}},
	"filesystem.max_files":        {{flags: "--files 10", refused: "filesystem.max_files"}},
	"filesystem.upper":            {{flags: "--upper ram", refused: "filesystem.upper"}, {flags: "--upper disk", refused: "filesystem.upper"}},
	"filesystem.persistence":      {{flags: "--workspace FILES", yaml: "filesystem: {persistence: keep}", refused: "filesystem.persistence"}},
	"filesystem.commit":           {{flags: "--commit success", refused: "filesystem.commit"}, {flags: "--commit ask", refused: "filesystem.commit"}},
	"filesystem.protect":          {{yaml: "filesystem: {protect: [f], workspace: {mode: rw}}", refused: "filesystem.protect"}, {flags: "--rw FILES", yaml: "filesystem: {protect: [f]}", refused: "filesystem.protect"}},

	"network.egress":           {{yaml: "network: {egress: allowlist, allowlist: ['192.0.2.1:1']}", refused: "allowlist"}},
	"network.allowlist":        {{flags: "--allow 192.0.2.1:1", refused: "allowlist"}},
	"network.allow_private":    {{flags: "--allow 10.0.0.1:1", yaml: "network: {allow_private: [10.0.0.1]}", refused: "allowlist"}},
	"network.resolve":          {{flags: "--allow a.example:1 --resolve a.example=192.0.2.1", refused: "allowlist"}},
	"network.proxy":            {{flags: "--allow a.example:1 --proxy env", refused: "allowlist"}},
	"network.listen":           {{yaml: "network: {listen: deny}", script: "PROBE serve tcp 127.0.0.1:0 2>&1 | grep -c EPERM", out: "1\n"}},
	"network.publish":          {{flags: "--publish 8080", refused: "publish"}},
	"network.broker":           {{flags: "--broker none", refused: "broker"}},
	"network.max_connections":  {{flags: "--allow a.example:1", yaml: "network: {max_connections: 1}", refused: "allowlist"}},
	"network.max_egress_bytes": {{flags: "--allow a.example:1", yaml: "network: {max_egress_bytes: 1}", refused: "allowlist"}},

	"process.max_cpu_seconds":  {{flags: "--cpu 100ms", script: "while :; do :; done", status: 137}},
	"process.max_memory_mb":    {{flags: "--memory 50M", script: "PROBE hog 400 100", status: 137}},
	"process.max_wall_seconds": {{flags: "--wall 100ms", script: "while :; do sleep 100; done", status: 124}},
	"process.max_subprocesses": {{flags: "--pids 10", refused: "process.max_subprocesses"}},
	"process.max_open_files":   {{yaml: "process: {max_open_files: 50}", script: "ulimit -n", out: "50\n"}},
	"process.user":             {{flags: "--user 0", refused: "may not run commands as user 0"}, {flags: "--user 12345", refused: "may not run commands as user 12345"}},
	"process.seccomp_allow":    {{yaml: "process: {seccomp_allow: [shmget]}", refused: "process.seccomp_allow"}},
	"env.allowlist":            {{flags: "--env HOME", script: "echo $HOME", out: "HOMEDIR\n"}},
	"env.set":                  {{flags: "--env A=b", script: "echo $A", out: "b\n"}},

	"secrets":                 {{flags: "--dispatch none", refused: "none"}},
	"stdin":                   {{yaml: "stdin: null", script: "cat", out: ""}},
	"output.max_stdout_bytes": {{flags: "--stdout 3", script: "echo 123456", out: "123"}},
	"output.terminal":         {{yaml: "output: {terminal: raw}", script: "echo x", out: "x\n"}}, // of a caller that has one
	"trace.files":             {{flags: "--trace all", refused: "trace.files"}, {flags: "--trace changes", refused: "trace.files"}},
	"trace.syscalls":          {{yaml: "trace: {syscalls: true}", refused: "trace.syscalls"}},
	"trace.on_loss":           {{flags: "--on-loss kill", script: "echo x", out: "x\n"}}, // nothing that is told can be lost
	"trace.max_bytes":         {{yaml: "trace: {max_bytes: 64M}", script: "echo x", out: "x\n"}},
	"trace.audit":             {{yaml: "trace: {audit: off}", script: "echo x", out: "x\n"}},
	"allow_gaps":              {{yaml: "allow_gaps: [filesystem.cow_mounts]", flags: "--cow FILES", script: "cat FILES/f; echo x 2>/dev/null >FILES/f || echo kept", out: "f\nkept\n"}},
	"unsafe":                  {{yaml: "unsafe: [host-network]", refused: "unsafe.host-network"}},
}

// landlockFlags are those of exec that set no key.
var landlockFlags = []written{
	{flags: "--continue last", refused: "no run"},
	{flags: "--tty always", refused: "terminal"},
	{flags: "--detach", refused: "--detach"},
}

// Whatever a policy or a flag writes is kept, or refused by its name: nothing that was written is
// taken by the word, and nothing is left out in silence.
func TestLandlockWritten(t *testing.T) {
	c := corner(t, "filter")
	files := c.mkdir("../files")
	c.mkdir("../files/tool")
	c.mkdir("../files/tool/bin")
	c.mkdir("../files/tool/lib")
	for name, text := range map[string]string{"../files/f": "f\n", "../files/tool/.npmrc": "secret", "../files/tool/bin/run": "#!/bin/sh\n", "f": "f\n"} {
		c.give(name, text)
	}
	fill := strings.NewReplacer("FILES", files, "PROBE", filepath.Join(programs(), "probe"), "HOMEDIR", c.home)
	var keys []string
	p, err := policy.Merge(policy.Defaults(policy.Context{Cwd: "/"}))
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range p.Clauses() {
		if len(landlockKeys[k.Key]) == 0 && k.Key != "network.unix" { // of TestLandlockRefusesClauses: by the kernel
			t.Errorf("nobody has said what becomes of %s", k.Key)
		}
		keys = append(keys, k.Key)
	}
	for key, list := range landlockKeys {
		if !slices.Contains(keys, key) {
			t.Errorf("no key is called %s", key)
		}
		for _, w := range list {
			c.writes(key, w, fill)
		}
	}
	for _, w := range landlockFlags {
		c.writes("flag", w, fill)
	}
	for _, f := range policyFlags {
		if !slices.ContainsFunc(slices.Concat(slices.Collect(maps.Values(landlockKeys))...), func(w written) bool { return strings.Contains(w.flags, "--"+f.name+" ") }) && f.name != "unix" && f.name != "allow-gap" {
			t.Errorf("nobody has said what becomes of --%s", f.name)
		}
	}
}

// writes runs the script of a clause, or true, with the clause and the word.
func (c cornered) writes(key string, w written, fill *strings.Replacer) {
	c.t.Helper()
	args := strings.Fields(fill.Replace(w.flags))
	if w.yaml != "" {
		args = append(args, "-p", c.give("../policy.yaml", "sandbox:\n  "+w.yaml+"\n"))
	}
	cmd := c.as(append(append([]string{agentguard(), "exec", "-q", "--allow-gap", "landlock", "--ro", programs()}, args...), "--", "sh", "-c", fill.Replace(w.script))...)
	cmd.Stdin = strings.NewReader("typed")
	out, errs, status := c.finish(cmd)
	switch {
	case w.refused != "" && (status != 125 || !strings.Contains(errs, w.refused)):
		c.t.Errorf("%s: %+v: %d %q, not refused by name: %q", key, w, status, out, errs)
	case w.refused == "" && (status != w.status || out != fill.Replace(w.out)):
		c.t.Errorf("%s: %+v: %d %q %q", key, w, status, out, errs)
	}
}

// give writes a file of the user's; its name is relative to the workspace.
func (c cornered) give(name, text string) string {
	c.t.Helper()
	file := filepath.Join(c.work, name)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		c.t.Fatal(err)
	}
	if err := os.Chown(file, c.uid(), lonerGID); err != nil {
		c.t.Fatal(err)
	}
	return file
}

// A read-only grant keeps contents: flags, versions and the like cannot be set by a descriptor for
// reading, and what cannot be kept is a gap that the refusal names.
func TestLandlockAttributes(t *testing.T) {
	c := corner(t, "filter")
	file := c.give("f", "f\n")
	probe := []string{filepath.Join(programs(), "probe"), "attributes", file}
	out, errs, status := c.inside(append([]string{"--mode", "ro", "--"}, probe...)...)
	if status != 0 {
		t.Fatalf("%d %q", status, errs)
	}
	got := answers(t, out)
	for _, name := range []string{"setflags", "fssetxattr", "setversion", "verity"} {
		if got[name] != "EPERM" {
			t.Errorf("%s: %s", name, got[name])
		}
	}
	for _, name := range []string{"fchmod", "fchown", "futimens"} { // tar, cp -p and touch do so
		if got[name] != "ok" {
			t.Errorf("%s: %s: then filesystem.attributes is no gap", name, got[name])
		}
	}
	native, errs, status := c.finish(c.native(probe...))
	if status != 0 || answers(t, native)["setflags"] == "EPERM" {
		t.Errorf("without agentguard: %d %q %q", status, native, errs)
	}
	if _, errs, status := c.guard("exec", "--", "true"); status != 125 || !strings.Contains(errs, "filesystem.attributes") {
		t.Errorf("%d %q", status, errs)
	}
}

// What other programs execute in a workspace that is written in place is compared when the run has
// ended, since no mount makes it read-only: new names, and other contents of those that were there.
func TestLandlockPlanted(t *testing.T) {
	c := corner(t, "filter")
	c.mkdir(".git")
	c.mkdir(".git/hooks")
	c.give(".git/hooks/post-commit", "old")
	c.mkdir(".git/hooks/a/b")
	r := c.result("--allow-gap", "landlock", "--mode", "rw", "--", "sh", "-c", "echo x >.git/hooks/pre-commit; echo new >.git/hooks/post-commit; echo y >.envrc; echo z >.git/hooks/a/b/deep")
	for _, want := range []string{".git/hooks was changed", ".git/hooks/post-commit was changed", ".git/hooks/a/b/deep was made", ".envrc was made"} {
		if !strings.Contains(strings.Join(r.Planted, "\n"), want) {
			t.Errorf("%q is not in %q", want, r.Planted)
		}
	}
	if r := c.result("--allow-gap", "landlock", "--mode", "rw", "--", "cat", ".git/hooks/pre-commit"); r.Status != 0 || len(r.Planted) > 0 {
		t.Errorf("%d, nothing was written: %q", r.Status, r.Planted)
	}
}
