package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// above are values by which each flag of exec asks for more than hostCeiling has. $HOME is ann's
// directory, which is below /tmp.
var above = map[string][]string{
	"policy":     {"memory.yaml", "many.yaml", "unsafe.yaml", "gaps.yaml"},
	"profile":    {"grants"},
	"ro":         {"/var", "/var:$HOME/x"},
	"rw":         {".", "$HOME/d"},
	"cow":        {"/var"},
	"workspace":  {"/var"},
	"mode":       {"rw"},
	"toolchains": {"/opt"},
	"allow":      {"192.0.2.1:443", "udp://192.0.2.1:53", "*.example.com:443"},
	"unix":       {"/run/x"},
	"publish":    {"8080"},
	"memory":     {"513M", "none"},
	"cpu":        {"61s", "none"},
	"wall":       {"121s", "none"},
	"pids":       {"65", "none"},
	"output":     {"11M", "none"},
	"stdout":     {"2M", "none"},
	"user":       {"0", fmt.Sprint(bob)},
	"commit":     {"success"},
	"continue":   {"last"},
	"trace":      {"changes"},
	"allow-gap":  {"record"},
	"broker":     {"model"},
	"dispatch":   {"forge.open"},
	"state":      {"$HOME/state"},
}

// within gives nothing that a ceiling bounds: less, the user's own, or a form of saying it.
var within = []string{
	"env", "resolve", "proxy", "cache", "file-size", "files", "upper", "on-loss", "collect", "tty", "json", "actions", "lines",
	"dry-run", "detach", "without-helper", "quiet", "verbose", "help",
}

// Each flag of exec is refused what is above the ceiling, alone, and where it comes with, before or
// after, a value that is not. A new flag must find its place here.
func TestHelperEveryFlag(t *testing.T) {
	etc(t, map[string]string{"ceiling.yaml": hostCeiling})
	s := serveUsers(t)
	for name, text := range map[string]string{
		"memory.yaml": "sandbox:\n  process: {max_memory_mb: 100}\n---\nsandbox:\n  process: {max_memory_mb: 600}\n",
		"many.yaml":   "sandbox:\n  process: {max_subprocesses: 1000, max_open_files: 100000, seccomp_allow: [bpf]}\n",
		"unsafe.yaml": "sandbox:\n  unsafe: [broad-mount]\n  filesystem: {read_only_mounts: [/]}\n",
		"gaps.yaml":   "sandbox:\n  allow_gaps: [record]\n",
		".config/agentguard/profiles/grants.yaml": "sandbox:\n  filesystem: {writable_mounts: [/var/tmp]}\n",
	} {
		path := filepath.Join(s.home, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	low := map[string]string{"memory": "100M", "cpu": "10s", "wall": "20s", "pids": "20", "output": "1M", "stdout": "100K", "mode": "ro", "trace": "all", "commit": "never"}
	known := map[string]bool{}
	for _, name := range within {
		known[name] = true
	}
	newExec().Flags().VisitAll(func(f *pflag.Flag) {
		if values, ok := above[f.Name]; ok {
			for _, v := range values {
				s.refused(f.Name, strings.ReplaceAll(v, "$HOME", s.home), low[f.Name])
			}
		} else if !known[f.Name] {
			t.Errorf("--%s: what of it a ceiling bounds is not said here", f.Name)
		}
	})
}

// refused asks for the value of a flag in each order with a lower one.
func (s *service) refused(flag, value, low string) {
	s.t.Helper()
	f := "--" + flag
	for _, flags := range [][]string{{f, value}, {f, low, f, value}, {f, value, f, low}} {
		if low == "" && len(flags) > 2 {
			continue
		}
		out, errs, status := s.guard(ann, append(append([]string{"exec", "-q"}, flags...), "--", "echo", "gained")...)
		if len(flags) > 2 && flags[3] == low && out == "gained\n" { // the last one counts
			continue
		}
		if out != "" || status == 0 {
			s.t.Errorf("%v: %d %q %q", flags, status, out, errs)
		}
	}
}
