package policy

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// merged applies flags over the defaults.
func merged(t *testing.T, flags ...Flag) *Policy {
	t.Helper()
	f, err := FromFlags(flags)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Merge(Defaults(host), f)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Each flag sets one clause, and says so.
func TestFromFlags(t *testing.T) {
	cwd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, value, key, want string }{
		{"ro", "/a", "filesystem.read_only_mounts", "/a"},
		{"ro", "sub/../x", "filesystem.read_only_mounts", filepath.Join(cwd, "x")},
		{"rw", "/a:/b", "filesystem.writable_mounts", "/a:/b"},
		{"cow", "/a", "filesystem.cow_mounts", "/a"},
		{"workspace", ".", "filesystem.workspace.path", cwd},
		{"mode", "rw", "filesystem.workspace.mode", "rw"},
		{"env", "FOO", "env.allowlist", "FOO"},
		{"env", "FOO_*", "env.allowlist", "FOO_*"},
		{"env", "FOO=a=b", "env.set", "FOO=a=b"},
		{"env", "FOO=", "env.set", "FOO="},
		{"env", "FOO=!x", "env.set", "FOO=!x"},
		{"env", "GITHUB_TOKEN=literal", "env.set", "GITHUB_TOKEN=literal"},
		{"allow", "api.example.com:443", "network.allowlist", "api.example.com:443"},
		{"resolve", "A.example=10.0.0.1", "network.resolve", "a.example=10.0.0.1"},
		{"proxy", "none", "network.proxy", "none"},
		{"unix", "/run/app.sock", "network.unix", "/run/app.sock"},
		{"publish", "8080", "network.publish", "8080"},
		{"broker", "model", "network.broker", "model"},
		{"memory", "512M", "process.max_memory_mb", "512M"},
		{"memory", "1073741824", "process.max_memory_mb", "1G"},
		{"memory", "none", "process.max_memory_mb", "none"},
		{"cpu", "30", "process.max_cpu_seconds", "30s"},
		{"wall", "5m", "process.max_wall_seconds", "5m"},
		{"pids", "64", "process.max_subprocesses", "64"},
		{"output", "2G", "filesystem.max_output_bytes", "2G"},
		{"file-size", "1M", "filesystem.max_file_bytes", "1M"},
		{"files", "1000", "filesystem.max_files", "1000"},
		{"stdout", "10M", "output.max_stdout_bytes", "10M"},
		{"user", "0", "process.user", "0"},
		{"toolchains", "none", "filesystem.toolchains", "none"},
		{"toolchains", "/opt/x", "filesystem.toolchains", "/opt/x"},
		{"cache", "auto", "filesystem.caches", "auto"},
		{"cache", "npm", "filesystem.caches", "npm"},
		{"commit", "ask", "filesystem.commit", "ask"},
		{"dispatch", "act", "secrets", "act"},
		{"trace", "changes", "trace.files", "changes"},
		{"on-loss", "kill", "trace.on_loss", "kill"},
		{"allow-gap", "filesystem.commit", "allow_gaps", "filesystem.commit"},
	} {
		p := merged(t, Flag{c.name, c.value})
		want := Clause{c.key, c.want, Source{Flag: "--" + c.name}}
		found := false
		for _, got := range p.Clauses() {
			found = found || got == want
		}
		if !found {
			t.Errorf("--%s %s: no clause %v", c.name, c.value, want)
		}
	}
}

// The flags of the issue are exactly the flags of the schema.
func TestFlagsAreComplete(t *testing.T) {
	want := strings.Fields("ro rw cow workspace mode toolchains cache output file-size files upper commit allow resolve proxy unix publish broker cpu memory wall pids user env env dispatch stdout trace on-loss allow-gap")
	var got []string
	for _, k := range schema() {
		if k.flag != "" {
			got = append(got, k.flag)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestFromFlagsCollectsErrors(t *testing.T) {
	_, err := FromFlags([]Flag{
		{"ro", "~/x"},
		{"rom", "/x"},
		{"memory", "512"},
		{"memory", ""},
		{"env", "A B"},
		{"env", ""},
		{"resolve", "a"},
		{"resolve", "a=b"},
		{"allow", "a"},
		{"allow-gap", "unsafe.host-network"},
		{"pids", "0"},
		{"wall", "ever"},
		{"mode", "rx"},
		{"ro", "/ok"},
		{"env", "!A=B"},
	})
	var all Errors
	if !errors.As(err, &all) {
		t.Fatalf("%T: %v", err, err)
	}
	want := []string{
		`flag --ro: "~/x": ~ is not expanded (write the path in full)`,
		`flag --rom: unknown policy flag "rom" (did you mean "ro"?)`,
		`flag --memory: 512 bytes: no program runs in less than 1M of memory (write a unit: 512M)`,
		`flag --memory: "" is not a size (write bytes or a binary unit: 65536, 64K, 16M, 2G)`,
		`flag --env: "A B" is not the name of a variable (letters, digits and _ only, not starting with a digit)`,
		`flag --env: "" is not the name of a variable (letters, digits and _ only, not starting with a digit)`,
		`flag --resolve: "a" has no = (write NAME=ADDRESS)`,
		`flag --resolve: "b" is not an address (write an IPv4 or IPv6 address)`,
		`flag --allow: "a" has no port (write "a:443")`,
		`flag --allow-gap: the gap unsafe.host-network cannot be accepted (remove host-network from unsafe)`,
		`flag --pids: "0": a limit must be more than 0 (write "none" for no limit)`,
		`flag --wall: "ever" is not a duration (write seconds or a duration: 30, 45s, 5m, 1h30m)`,
		`flag --mode: unknown word "rx" (did you mean "ro"?)`,
		`flag --env: "!A" is not the name of a variable (letters, digits and _ only, not starting with a digit)`,
	}
	if diff := cmp.Diff(want, strings.Split(err.Error(), "\n")); diff != "" {
		t.Error(diff)
	}
	var first *Error
	if !errors.As(err, &first) || first.Clause != "filesystem.read_only_mounts" {
		t.Errorf("the first problem is %+v", first)
	}
}

func TestFlagRemovesDefault(t *testing.T) {
	p := merged(t, Flag{"env", "!LANG"}, Flag{"env", "X"})
	want := []Text{{Value: "LC_ALL"}, {Value: "TERM"}, {Value: "X", Source: Source{Flag: "--env"}}}
	if diff := cmp.Diff(want, p.EnvAllow); diff != "" {
		t.Error(diff)
	}
}

// In a directory that is gone, absolute paths still work.
func TestFromFlagsWithoutCwd(t *testing.T) {
	dir := t.TempDir()
	gone := filepath.Join(dir, "gone")
	if err := os.Mkdir(gone, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(gone)
	if err := os.Remove(gone); err != nil {
		t.Fatal(err)
	}
	if _, err := FromFlags([]Flag{{"ro", "x"}}); err == nil {
		t.Error("a path relative to nothing is accepted")
	}
	if _, err := FromFlags([]Flag{{"ro", "/x"}}); err != nil {
		t.Error(err)
	}
}
