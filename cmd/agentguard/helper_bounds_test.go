package main

import (
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
