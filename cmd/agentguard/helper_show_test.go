package main

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// withoutUserNS makes a process that can make no user namespaces of this test binary.
const withoutUserNS = "exec-without-user-namespaces"

// execWithoutUserNS executes a program that gets ENOSPC for a user namespace, as where
// user.max_user_namespaces is 0.
func execWithoutUserNS(argv []string) {
	runtime.LockOSThread()
	const arg0 = 16 // struct seccomp_data, the low half on machines that are little-endian
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_CLONE, Jt: 1},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_UNSHARE, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: arg0},
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: unix.CLONE_NEWUSER, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSPC)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
	if errno == 0 {
		fmt.Fprintln(os.Stderr, unix.Exec(argv[0], argv, os.Environ()))
	}
	fmt.Fprintln(os.Stderr, errno)
	os.Exit(1)
}

// Where there are no user namespaces, everything that reads records works, and commit; files stay
// root's, and nobody comes to them by a path.
func TestHelperWithoutUserNamespaces(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := serveBy(t, self, withoutUserNS, agentguard())
	if _, errs, status := s.guard(ann, "exec", "-q", "--", "sh", "-c", "echo new >made; mkdir -p a/b; echo x >a/b/c"); status != 0 {
		t.Fatal(errs)
	}
	for _, args := range [][]string{
		{"runs", "ls"}, {"runs", "show"}, {"trace", "show"}, {"trace", "verify"}, {"explain"}, {"diff"}, {"diff", "--patch"}, {"keys", "export"}, {"trace", "query", "kind == exec"},
	} {
		if out, errs, status := s.guard(ann, args...); status != 0 || out == "" || errs != "" {
			t.Errorf("%v: %d %q %q", args, status, out, errs)
		}
	}
	if _, errs, status := s.guard(ann, "commit"); status != 0 || !exists(filepath.Join(s.home, "a/b/c")) {
		t.Errorf("commit: %d %q", status, errs)
	}
	for _, args := range [][]string{{"runs", "rm", "last"}, {"runs", "prune", "--keep", "0"}, {"runs", "recover"}, {"keys", "show"}} {
		if out, errs, status := s.guard(ann, args...); status != 125 || out != "" || !strings.Contains(errs, "root's") || strings.Count(errs, "\n") != 1 {
			t.Errorf("%v: %d %q %q", args, status, out, errs)
		}
	}
	out, errs, _ := s.guard(ann, "exec", "--detach", "--", "sh", "-c", "echo begun; sleep 0.3; echo over; exit 5")
	if out, errs, status := s.guard(ann, "attach", strings.TrimSpace(out)); out != "begun\nover\n" || status != 5 {
		t.Errorf("attach: %d %q %q", status, out, errs)
	}
	_ = errs
	if out := s.attack("records"); out != "" {
		t.Error(out)
	}
	s.rootsOwn(filepath.Join(stateDir, "users", strconv.Itoa(ann)))
	if _, errs, status := s.finish(s.as(ann, "ls", filepath.Join(stateDir, "users", strconv.Itoa(ann), "runs"))); status == 0 || !strings.Contains(errs, "denied") {
		t.Errorf("by the path: %q", errs)
	}
	open := filepath.Join(stateDir, "users")
	if err := os.Chmod(open, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, errs, status := s.guard(ann, "runs", "ls"); status == 0 || !strings.Contains(errs, "user.max_user_namespaces") || !strings.Contains(errs, "chmod go=") {
		t.Errorf("with users/ open to all: %d %q", status, errs)
	}
	if err := os.Chmod(open, 0o700); err != nil {
		t.Fatal(err)
	}
}

// rootsOwn fails the test for what is not root's, or can be written by others.
func (s *service) rootsOwn(dir string) {
	s.t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		if err == nil && (st.Uid != 0 || st.Gid != 0 || st.Mode&0o022 != 0) {
			s.t.Errorf("%s: owner %d:%d, mode %o", path, st.Uid, st.Gid, st.Mode)
		}
		return err
	})
	if err != nil {
		s.t.Error(err)
	}
}

// auditors of the tests.
const auditGID = 424299

// asAuditor makes a command of bob's, who is in the audit group.
func (s *service) asAuditor(args ...string) *exec.Cmd {
	cmd := s.as(bob, append([]string{agentguard()}, args...)...)
	cmd.SysProcAttr.Credential.Groups = []uint32{auditGID}
	return cmd
}

// Members of the audit group read the records of all users, change none, and each reading
// is in the log. Nobody else reads any, by whatever name is asked for.
func TestHelperAudit(t *testing.T) {
	etc(t, map[string]string{"helper.yaml": "audit_group: " + strconv.Itoa(auditGID) + "\n"})
	s := serveUsers(t)
	if _, errs, status := s.guard(ann, "exec", "-q", "--", "sh", "-c", "echo audited >made"); status != 0 {
		t.Fatal(errs)
	}
	user := strconv.Itoa(ann)
	for _, args := range [][]string{
		{"runs", "ls", "--all"},
		{"runs", "ls", "--user", user},
		{"runs", "show", "--user", user},
		{"trace", "show", "--user", user},
		{"trace", "verify", "--user", user},
		{"diff", "--user", user},
		{"explain", "--user", user},
	} {
		if out, errs, status := s.finish(s.asAuditor(args...)); status != 0 || out == "" {
			t.Errorf("%v: %d %q %q", args, status, out, errs)
		}
		if out, errs, status := s.guard(bob, args...); status != 125 || out != "" || !strings.Contains(errs, "no records but its own") {
			t.Errorf("not in the group, %v: %d %q %q", args, status, out, errs)
		}
	}
	if !s.logged("granted", "users", bob, "") || !s.logged("refused", "records", bob, "no records but its own") || !s.read(bob, user) {
		t.Error("the log does not tell who has read what")
	}
	for _, name := range []string{"0", "root", "+" + user, "0" + user, user + "/../" + user, "../" + user, "..", "/", user + "\n", "4294967295", "-1", "no-such-user", strings.Repeat("9", 400), "424203"} {
		for group, cmd := range map[string]*exec.Cmd{"audit": s.asAuditor("runs", "ls", "--user", name), "none": s.as(bob, agentguard(), "runs", "ls", "--user", name)} {
			if out, errs, status := s.finish(cmd); status != 125 || out != "" || group == "none" && !strings.Contains(errs, "no records but its own") {
				t.Errorf("group %s, user %q: %d %q %q", group, name, status, out, errs)
			}
		}
	}
	if exists(filepath.Join(stateDir, "users", "424203")) {
		t.Error("asking for a user makes a directory")
	}
	id := strings.Fields(strings.SplitN(must2(s.guard(ann, "runs", "ls")), "\n", 3)[1])[0]
	for _, args := range [][]string{{"commit", id}, {"discard", id}, {"runs", "kill", id}, {"exec", "--continue", id, "--", "true"}} {
		if out, errs, status := s.finish(s.asAuditor(args...)); status == 0 {
			t.Errorf("%v: %q %q", args, out, errs)
		}
	}
	attacker := s.asAuditor()
	attacker.Path, attacker.Args = "/proc/self/exe", []string{"/proc/self/exe"}
	attacker.Env = append(attacker.Env, attackVar+"=records", "OF="+user)
	if out, errs, status := s.finish(attacker); out != "" || status != 0 {
		t.Errorf("what a descriptor of another's records is good for: %q %q", out, errs)
	}
}

func must2(out, _ string, _ int) string { return out }

// read reports whether the log tells that a user has read another's records.
func (s *service) read(uid int, of string) bool {
	for _, e := range s.log() {
		if e.UID == uid && e.Of == of && e.Outcome == "granted" && e.Request == "records" {
			return true
		}
	}
	return false
}

// The group that is there by default is nobody's where there is none.
func TestHelperAuditDefault(t *testing.T) {
	s := serveUsers(t)
	if _, errs, status := s.finish(s.asAuditor("runs", "ls", "--all")); status != 125 || !strings.Contains(errs, "no records but its own") {
		t.Errorf("%d %q", status, errs)
	}
	etc(t, map[string]string{"helper.yaml": "audit_grp: x\n"})
	if _, errs, status := s.guard(ann, "exec", "-q", "--", "true"); status != 125 || !strings.Contains(errs, "audit_grp") {
		t.Errorf("with a wrong configuration: %d %q", status, errs)
	}
}

// Of a caller who has had the answer nobody says that it has gone, however soon it ends.
func TestHelperAnswered(t *testing.T) {
	s := serveUsers(t)
	before := len(s.log())
	for range 40 {
		if _, errs, status := s.guard(ann, "runs", "ls"); status != 0 {
			t.Fatalf("%d %q", status, errs)
		}
	}
	s.until("all requests have ended", s.spare)
	answered := 0
	for _, e := range s.log()[before:] {
		if e.UID == ann && e.Outcome == "gone" {
			t.Errorf("%+v", e)
		} else if e.UID == ann && e.Outcome == "granted" {
			answered++
		}
	}
	if answered < 40 {
		t.Errorf("%d requests are in the log", answered)
	}
}
