package policy_test

import (
	"fmt"

	"github.com/agentguard/agentguard/policy"
)

// A policy is merged from its sources, and each clause keeps the place that set it.
func ExampleMerge() {
	file, err := policy.Parse("job.yaml", []byte(`
sandbox:
  filesystem:
    read_only_mounts: [/data]
  process:
    max_wall_seconds: 45
`))
	if err != nil {
		fmt.Println(err) // every problem, with its line and column
		return
	}
	flags, err := policy.FromFlags([]policy.Flag{{Name: "memory", Value: "2G"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	p, err := policy.Merge(policy.Defaults(policy.Context{MemTotal: 8 << 30, Cwd: "/src"}), file, flags)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, c := range p.Clauses() {
		switch c.Key {
		case "filesystem.read_only_mounts", "process.max_memory_mb", "process.max_wall_seconds", "process.max_subprocesses":
			fmt.Printf("%s = %s (%s)\n", c.Key, c.Value, c.Source)
		}
	}
	// Output:
	// filesystem.read_only_mounts = /data (job.yaml:4:24)
	// process.max_memory_mb = 2G (flag --memory)
	// process.max_wall_seconds = 45s (job.yaml:6:23)
	// process.max_subprocesses = 512 (default)
}

// All problems of a file are told at once, each with its place and what to write instead.
func ExampleParse_errors() {
	_, err := policy.Parse("job.yaml", []byte(`sandbox:
  filesystem: {read_only_mount: [/data]}
  process: {max_memory_mb: 0512}
`))
	fmt.Println(err)
	// Output:
	// job.yaml:2:16: unknown key "read_only_mount" (did you mean "read_only_mounts"?)
	// job.yaml:3:28: process.max_memory_mb: "0512" is not a size (write bytes or a binary unit: 65536, 64K, 16M, 2G)
}

// SecretName says which variables a policy does not pass on without a word for it.
func ExampleSecretName() {
	for _, name := range []string{"LANG", "GITHUB_TOKEN", "SSH_AUTH_SOCK"} {
		fmt.Println(name, policy.SecretName(name))
	}
	// Output:
	// LANG false
	// GITHUB_TOKEN true
	// SSH_AUTH_SOCK true
}
