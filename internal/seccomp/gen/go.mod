// The table's generator is a module of its own: what it reads at generate time
// is no dependency of the program.
module github.com/agentguard/agentguard/internal/seccomp/gen

go 1.26.0

require (
	github.com/moby/profiles/seccomp v0.3.0
	github.com/opencontainers/runtime-spec v1.2.1
	golang.org/x/sys v0.50.0
)
