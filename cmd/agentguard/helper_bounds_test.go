package main

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/policy"
)

// A policy that would keep a process with root busy for long is refused before it is merged.
func TestHelperManyEntries(t *testing.T) {
	q := request("true")
	for n := range maxStatements + 1 {
		q.asked[0].List = append(q.asked[0].List, policy.Statement{Key: "env.allowlist", Text: "A" + strconv.Itoa(n), Source: policy.Source{Flag: "--env"}})
	}
	if _, err := readExec(q.lists()); err == nil || !strings.Contains(err.Error(), "entries") {
		t.Error(err)
	}
	q.asked[0].List = q.asked[0].List[:maxStatements]
	if _, err := readExec(q.lists()); err != nil {
		t.Error(err)
	}
}

// A set-group-id program that connects lends its group to nobody: in the request's
// command it would be the user's own.
func TestHelperSetGroupID(t *testing.T) {
	s := serveUsers(t)
	const lent = 42
	who := strconv.Itoa(ann)
	cmd := s.as(ann, "setpriv", "--ruid", who, "--euid", who, "--rgid", who, "--egid", strconv.Itoa(lent), "--clear-groups", agentguard(), "exec", "-q", "--", "id", "-g")
	cmd.SysProcAttr = nil // setpriv gives up root itself
	out, errs, status := s.finish(cmd)
	if status == 0 || strings.Contains(out, strconv.Itoa(lent)) || !strings.Contains(errs, "changed its ids") {
		t.Errorf("%d %q %q", status, out, errs)
	}
	s.works()
}

// A user who asks for itself has the group that it has, and not the one that passwd names, or
// that has the number of its uid.
func TestHelperUserOfItself(t *testing.T) {
	s := serveUsers(t)
	secret := filepath.Join(s.home, "group")
	if err := errors.Join(os.WriteFile(secret, []byte("secret"), 0o640), os.Chown(secret, 0, ann)); err != nil {
		t.Fatal(err)
	}
	const group = 424299
	cmd := s.as(ann, agentguard(), "exec", "-q", "--user", strconv.Itoa(ann), "--", "sh", "-c", "id -g; cat group")
	cmd.SysProcAttr.Credential.Gid = group
	if out, errs, _ := s.finish(cmd); out != strconv.Itoa(group)+"\n" || !strings.Contains(errs, "Permission denied") {
		t.Errorf("%q %q", out, errs)
	}
}

// A command that is given a home directory does not approve files of actions in its user's name:
// what dispatch keeps for a user without root lies there, and is not the helper's to leave out.
func TestHelperForgedApproval(t *testing.T) {
	s := serveUsers(t)
	dir := filepath.Join(s.home, ".local/state/agentguard/dispatch")
	file := filepath.Join(dir, "approved")
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(file, nil, 0o600), os.Chown(file, ann, ann)); err != nil {
		t.Fatal(err)
	}
	for d := dir; d != s.home; d = filepath.Dir(d) {
		if err := os.Chown(d, ann, ann); err != nil {
			t.Fatal(err)
		}
	}
	for _, mode := range []string{"rw", "cow"} {
		s.guard(ann, "exec", "-q", "-w", s.home, "--mode", mode, "--", "sh", "-c", "echo forged >>"+file)
		s.guard(ann, "commit", "--force")
		if b, err := os.ReadFile(file); err != nil || len(b) > 0 {
			t.Errorf("%s: %q %v", mode, b, err)
		}
	}
}
