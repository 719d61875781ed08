package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/helper"
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

// attackLateDescriptors sends descriptors where none belong: with the later part of a request,
// and as many as go into one message, again and again.
func attackLateDescriptors() error {
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	good, three := bytesOf(helper.Exec, request("echo", "gained").lists()), unix.UnixRights(null, null, null)
	most := unix.UnixRights(slices.Repeat([]int{null}, 253)...) // SCM_MAX_FD
	for name, send := range map[string]func(*net.UnixConn) error{
		"late": func(c *net.UnixConn) error {
			return errors.Join(second(c.Write(good[:20])), sendWith(c, good[20:], three))
		},
		"twice": func(c *net.UnixConn) error {
			return errors.Join(sendWith(c, good[:5], three), sendWith(c, good[5:13], three), sendWith(c, good[13:], three))
		},
		"many": func(c *net.UnixConn) error {
			for i := range good {
				if err := sendWith(c, good[i:i+1], most); err != nil {
					return err
				}
			}
			return nil
		},
	} {
		c, err := dialSocket()
		if err != nil {
			return err
		}
		if err := send(c); err != nil && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.ETOOMANYREFS) {
			return fmt.Errorf("%s: %w", name, err)
		}
		f, err := helper.Read(c)
		switch {
		case name == "twice" && err == nil && f.Kind == helper.Done: // those of the first part count, the others are dropped
		case err != nil && !errors.Is(err, unix.ECONNRESET) || err == nil && f.Kind != helper.Failed:
			fmt.Printf("%s: %+v %v\n", name, f, err)
		}
		c.Close()
	}
	return nil
}

func sendWith(c *net.UnixConn, b, rights []byte) error {
	_, _, err := c.WriteMsgUnix(b, rights, nil)
	return err
}

func TestHelperLateDescriptors(t *testing.T) {
	s := serveUsers(t)
	if out := s.attack("late-descriptors"); out != "" {
		t.Errorf("taken, or not answered:\n%s", out)
	}
	s.works()
}

// Streams that are closed, or that have a number beyond all, are the client's own affair.
func TestHelperClosedStreams(t *testing.T) {
	s := serveUsers(t)
	const inside = `exec "$0" exec -q --mode rw -- sh -c 'cat; echo ran >made; echo out; echo err >&2; true'`
	for _, closed := range []string{" <&-", " >&-", " 2>&-", " <&- >&- 2>&-"} {
		made := filepath.Join(s.home, "made")
		if out, errs, status := s.finish(s.as(ann, "sh", "-c", inside+closed, agentguard())); status != 0 || !exists(made) {
			t.Errorf("%s: %d %q %q", closed, status, out, errs)
		}
		if err := os.Remove(made); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	for _, n := range []string{"fd:7", "fd:2147483647", "fd:99999999999999999999", "fd:-1"} {
		if out, errs, status := s.guard(ann, "exec", "-q", "--json", n, "--", "echo", "ran"); status == 0 || out != "" {
			t.Errorf("--json %s: %d %q %q", n, status, out, errs)
		}
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
