package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/helper"
	"github.com/agentguard/agentguard/supervisor"
)

// A command and its user try to remove, alter or forge their own record: nothing of it
// works, the record is whole, and what they asked for is in it or in the helper's log.
func TestHelperEvidence(t *testing.T) {
	s := serveUsers(t)
	const inside = `for f in /var/lib/agentguard/users/*/runs /run/agentguard /proc/1/root/var/lib/agentguard; do ls $f && echo seen; rm -rf $f && test ! -e $f || echo no; done 2>/dev/null
		kill -9 1; kill -STOP -1; echo forged >/var/lib/agentguard/helper.log && echo written; true`
	if out, errs, status := s.guard(ann, "exec", "-q", "--", "sh", "-c", inside); strings.Contains(out, "seen") || strings.Contains(out, "written") || status != 0 {
		t.Errorf("inside: %d %q %q", status, out, errs)
	}
	outside := s.attack("records")
	if outside != "" {
		t.Errorf("outside:\n%s", outside)
	}
	for _, args := range [][]string{{"runs", "rm", "last"}, {"runs", "prune", "--keep", "0"}, {"runs", "recover"}, {"keys", "rotate"}} {
		if out, errs, status := s.guard(ann, args...); status == 0 && !strings.Contains(out+errs, "0 ") {
			t.Errorf("%v: %q %q", args, out, errs)
		}
	}
	out, errs, status := s.guard(ann, "trace", "verify", "last")
	if status != 0 || !strings.Contains(out, "complete") {
		t.Errorf("the record: %d %q %q", status, out, errs)
	}
	out, _, _ = s.guard(ann, "trace", "show", "last")
	for _, want := range []string{"denied signal (EPERM", "denied unlink /run/agentguard", "rm -rf /proc/1/root/var/lib/agentguard"} {
		if !strings.Contains(out, want) {
			t.Errorf("the record does not tell %q: %s", want, out)
		}
	}
	if !s.logged("granted", "records", ann, "") {
		t.Error("the log does not tell who looked")
	}
	s.reach()
	s.fake()
}

// reach asks for the place of the records as a grant, and for what no request is: each is
// refused, and a line of the log with its reason.
func (s *service) reach() {
	s.t.Helper()
	for i, dir := range []string{"/var", "/var/lib", "/run/agentguard"} {
		file := filepath.Join(s.home, "reach.yaml")
		text := fmt.Sprintf("sandbox:\n  unsafe: [broad-mount]\n  filesystem: {%s: [%s]}\n", []string{"read_only_mounts", "writable_mounts"}[i%2], dir)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			s.t.Fatal(err)
		}
		out, errs, status := s.guard(ann, "exec", "-q", "-p", file, "--", "sh", "-c", "rm -rf "+dir+"; echo ran")
		if status != supervisor.StatusFailed || out != "" || !s.logged("refused", "exec", ann, dir+" reaches") {
			s.t.Errorf("%s: %d %q %q", dir, status, out, errs)
		}
	}
	for _, kind := range "RMWrmw" { // no such request
		path := filepath.Join(s.home, "request")
		if err := os.WriteFile(path, bytesOf(helper.Kind(kind), [][]string{{"last"}}), 0o644); err != nil {
			s.t.Fatal(err)
		}
		if _, ok := kinds(helper.Kind(kind)); ok {
			continue
		}
		if out := s.attack("raw", "REQUEST="+path); !strings.HasPrefix(out, string(helper.Failed)) || !s.logged("refused", "", ann, "an unknown request") {
			s.t.Errorf("request %c: %s", kind, out)
		}
	}
}

// attackRecords tries everything that a descriptor of the records could be good for: as the user
// itself, and as root of namespaces of its own.
func attackRecords() error {
	c, err := dialSocket()
	if err != nil {
		return err
	}
	q := &helper.Frame{Kind: helper.Records}
	if of := os.Getenv("OF"); of != "" {
		q.Lists = [][]string{{of}}
	}
	if err := helper.Write(c, q); err != nil {
		return err
	}
	f, err := helper.Read(c)
	if err != nil || f.Kind != helper.Done {
		return errors.Join(err, errors.New("no records"))
	}
	if err := forgeRecords(f.Files); err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), attackVar+"=namespaces")
	cmd.ExtraFiles, cmd.Stdout, cmd.Stderr = f.Files, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	err = cmd.Run()
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOSPC) { // this host has none for users
		return nil
	}
	return err
}

// attackNamespaces is the other half: there the user may mount.
func attackNamespaces() error {
	files := []*os.File{os.NewFile(3, "records")}
	if _, err := unix.FcntlInt(4, unix.F_GETFD, 0); err == nil {
		files = append(files, os.NewFile(4, "log"))
	}
	return forgeRecords(files)
}

func forgeRecords(files []*os.File) error {
	dir := int(files[0].Fd())
	run, err := newestRun(dir)
	if err != nil {
		return err
	}
	trace, fd := run+"/trace.jsonl", "/proc/self/fd/"+strconv.Itoa(dir)
	gained := func(what string, err error) {
		if err == nil {
			fmt.Println(what)
		}
	}
	const every = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	gained("remount", unix.MountSetattr(dir, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_clr: every})) // then the rest
	for _, flags := range []int{unix.O_WRONLY, unix.O_RDWR, unix.O_WRONLY | unix.O_TRUNC, unix.O_RDONLY | unix.O_TRUNC} {
		_, err := unix.Openat(dir, trace, flags, 0)
		gained(fmt.Sprintf("open %#x", flags), err)
		_, err = unix.Open(fd+"/"+trace, flags, 0)
		gained(fmt.Sprintf("open by procfs %#x", flags), err)
	}
	gained("unlink", unix.Unlinkat(dir, trace, 0))
	gained("rename", unix.Renameat(dir, trace, dir, run+"/other"))
	gained("create", unix.Mknodat(dir, run+"/forged", unix.S_IFREG|0o600, 0))
	gained("mkdir", unix.Mkdirat(dir, "runs/20300101-000000-forged", 0o755))
	gained("link out", unix.Linkat(dir, trace, unix.AT_FDCWD, "linked", 0))
	gained("chmod", unix.Fchmodat(dir, trace, 0o777, 0))
	gained("chown", unix.Fchownat(dir, trace, os.Getuid(), -1, 0))
	gained("utimes", unix.UtimesNanoAt(dir, trace, make([]unix.Timespec, 2), 0))
	gained("xattr", unix.Setxattr(fd+"/"+trace, "user.x", []byte("x"), 0))
	_, err = unix.OpenTree(dir, "", unix.OPEN_TREE_CLONE|unix.AT_EMPTY_PATH)
	gained("clone", err)
	gained("attach", unix.MoveMount(dir, "", unix.AT_FDCWD, ".", unix.MOVE_MOUNT_F_EMPTY_PATH))
	for _, up := range []string{"..", "../../keys/host", "../..", "../helper.log", "/var/lib/agentguard/helper.log"} {
		var st, top unix.Stat_t
		if err := errors.Join(unix.Fstatat(dir, up, &st, 0), unix.Fstat(dir, &top)); err == nil && (st.Dev != top.Dev || st.Ino != top.Ino) {
			fmt.Println("reaches", up)
		}
	}
	if len(files) > 1 { // the entries of the log
		_, err := unix.Write(int(files[1].Fd()), []byte("forged"))
		gained("write to the log", err)
		_, err = unix.Open("/proc/self/fd/"+strconv.Itoa(int(files[1].Fd())), unix.O_RDWR, 0)
		gained("reopen the log", err)
	}
	return nil
}

// newestRun is the path of the newest run below the records.
func newestRun(dir int) (string, error) {
	fd, err := unix.Openat(dir, "runs", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	d := os.NewFile(uintptr(fd), "runs")
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil || len(names) == 0 {
		return "", fmt.Errorf("%d runs, %w", len(names), err)
	}
	newest := names[0]
	for _, n := range names {
		newest = max(newest, n)
	}
	return "runs/" + newest, nil
}

// fake is a helper of ann's own, which would show records of its making.
func (s *service) fake() {
	s.t.Helper()
	path := filepath.Join(s.home, "fake")
	attacker := s.as(ann, "/proc/self/exe")
	attacker.Env = append(attacker.Env, attackVar+"=listen", "FAKE="+path)
	if err := attacker.Start(); err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = attacker.Process.Kill(); _ = attacker.Wait() }()
	s.until("the fake listens", func() bool { return exists(path) })
	cmd := s.as(ann, agentguard(), "runs", "ls")
	cmd.Env = append(cmd.Env, "AGENTGUARD_SOCKET="+path)
	if out, errs, status := s.finish(cmd); status == 0 || !strings.Contains(errs, "and not root") {
		s.t.Errorf("a fake helper is believed: %q %q", out, errs)
	}
}

// attackListen is the fake.
func attackListen() error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: os.Getenv("FAKE"), Net: "unix"})
	if err != nil {
		return err
	}
	for {
		if _, err := l.Accept(); err != nil {
			return err
		}
	}
}
