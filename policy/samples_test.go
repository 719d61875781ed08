package policy

import (
	"fmt"
	"strings"
	"testing"
)

// sampleValues has two values for every key of the schema, the second above
// the first where a ceiling would compare them. All differ from the defaults.
var sampleValues = map[string][2]string{
	"runtime":                     {"microvm", "process"},
	"filesystem.read_only_mounts": {"/a", "/b:/c"},
	"filesystem.writable_mounts":  {"/a", "/b:/c"},
	"filesystem.cow_mounts":       {"/a", "/b:/c"},
	"filesystem.workspace.path":   {"/a", "/b"},
	"filesystem.workspace.mode":   {"ro", "rw"},
	"filesystem.toolchains":       {"/opt/a", "/opt/b"},
	"filesystem.caches":           {"npm", "pip"},
	"filesystem.max_output_bytes": {"10M", "20M"},
	"filesystem.max_file_bytes":   {"10M", "20M"},
	"filesystem.max_files":        {"10", "20"},
	"filesystem.upper":            {"ram", "disk"},
	"filesystem.persistence":      {"ephemeral", "keep"},
	"filesystem.commit":           {"never", "success"},
	"filesystem.protect":          {"a", "b/c"},
	"network.egress":              {"deny", "allowlist"},
	"network.allowlist":           {"a.example:1", "b.example:2"},
	"network.allow_private":       {"10.0.0.0/8", "db.example"},
	"network.resolve":             {"a.example=10.0.0.1", "b.example=10.0.0.2"},
	"network.proxy":               {"none", "env"},
	"network.unix":                {"/a.sock", "/b.sock"},
	"network.listen":              {"deny", "loopback"},
	"network.publish":             {"80", "81"},
	"network.broker":              {"a-model", "forge"},
	"network.max_connections":     {"10", "20"},
	"network.max_egress_bytes":    {"10M", "20M"},
	"process.max_cpu_seconds":     {"10", "20"},
	"process.max_memory_mb":       {"10", "20"},
	"process.max_wall_seconds":    {"10", "20"},
	"process.max_subprocesses":    {"10", "20"},
	"process.max_open_files":      {"10", "20"},
	"process.user":                {"10", "20"},
	"process.seccomp_allow":       {"ptrace", "kcmp"},
	"env.allowlist":               {"A", "B_*"},
	"env.set":                     {"A=1", "B=2"},
	"secrets":                     {"act", "other"},
	"stdin":                       {`"null"`, "pass"},
	"output.max_stdout_bytes":     {"10M", "20M"},
	"output.terminal":             {"sanitize", "raw"},
	"trace.files":                 {"all", "changes"},
	"trace.syscalls":              {"true", "false"},
	"trace.on_loss":               {"kill", "record"},
	"trace.max_bytes":             {"10M", "20M"},
	"trace.audit":                 {"auto", "off"},
	"allow_gaps":                  {"runtime", "filesystem.protect"},
	"unsafe":                      {"dbus", "ssh-agent"},
}

// samples turns the sample values into the bodies of policies, by key.
func samples(t *testing.T) (a, b map[string]string) {
	t.Helper()
	a, b = map[string]string{}, map[string]string{}
	for _, k := range schema() {
		v, ok := sampleValues[k.name]
		if !ok {
			t.Fatalf("no sample for %s", k.name)
		}
		a[k.name], b[k.name] = body(k, v[0]), body(k, v[1])
	}
	return a, b
}

// body writes one value of a key as the lines below the top-level key.
func body(k key, text string) string {
	switch k.form {
	case many, worded:
		text = fmt.Sprintf("[%q]", text)
	case named:
		name, value, _ := strings.Cut(text, "=")
		text = fmt.Sprintf("{%q: %q}", name, value)
	}
	parts := strings.Split(k.name, ".")
	var b strings.Builder
	for i, part := range parts {
		b.WriteString(strings.Repeat("  ", i+1) + part + ":")
		if i < len(parts)-1 {
			b.WriteString("\n")
		}
	}
	return b.String() + " " + text + "\n"
}
