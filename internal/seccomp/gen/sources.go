package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	_ "golang.org/x/sys/unix" // callNumbers reads its source
)

// notCalls are names of x/sys/unix that are no system calls: on arm64 the
// first of the numbers that an architecture may use for itself.
var notCalls = []string{"arch_specific_syscall"}

// callNumbers returns the system calls that x/sys/unix knows of linux/goarch.
func callNumbers(goarch string) (map[string]int, error) {
	out, err := exec.Command("go", "list", "-f", "{{.Dir}}", "golang.org/x/sys/unix").Output()
	if err != nil {
		return nil, fmt.Errorf("go list golang.org/x/sys/unix: %w", err)
	}
	path := filepath.Join(strings.TrimSpace(string(out)), "zsysnum_linux_"+goarch+".go")
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	numbers := map[string]int{}
	for _, decl := range file.Decls {
		consts, ok := decl.(*ast.GenDecl)
		if !ok || consts.Tok != token.CONST {
			continue
		}
		for _, spec := range consts.Specs {
			if err := addNumber(numbers, spec.(*ast.ValueSpec)); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
		}
	}
	return numbers, nil
}

func addNumber(numbers map[string]int, spec *ast.ValueSpec) error {
	name, ok := strings.CutPrefix(spec.Names[0].Name, "SYS_")
	if !ok || len(spec.Values) != 1 {
		return errors.New("a constant is not SYS_NAME = NUMBER")
	}
	lit, ok := spec.Values[0].(*ast.BasicLit)
	if !ok {
		return fmt.Errorf("SYS_%s is no number", name)
	}
	nr, err := strconv.Atoi(lit.Value)
	if err != nil {
		return fmt.Errorf("SYS_%s: %w", name, err)
	}
	if name = strings.ToLower(name); !slices.Contains(notCalls, name) {
		numbers[name] = nr
	}
	return nil
}

// mobyAllows returns the calls that Moby's default profile allows whatever
// their arguments are, to a container of goarch that has no capability.
// Rules that judge arguments are left to decisions.go.
func mobyAllows(goarch string) map[string]bool {
	allowed := map[string]bool{}
	for _, rule := range seccomp.DefaultProfile().Syscalls {
		if rule.Action != specs.ActAllow || len(rule.Args) != 0 || !applies(rule, goarch) {
			continue
		}
		for _, name := range rule.Names {
			allowed[name] = true
		}
	}
	return allowed
}

// applies reports whether rule holds without capabilities on goarch. Minimum
// kernels are ignored: they are all older than the oldest that agentguard runs on.
func applies(rule *seccomp.Syscall, goarch string) bool {
	if in := rule.Includes; in != nil {
		if len(in.Caps) != 0 || len(in.Arches) != 0 && !slices.Contains(in.Arches, goarch) {
			return false
		}
	}
	return rule.Excludes == nil || !slices.Contains(rule.Excludes.Arches, goarch)
}
