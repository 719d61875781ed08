package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/lostthread"
	"github.com/agentguard/agentguard/internal/testenv"
)

// manager is a service manager of a user's, as far as a run sees of it: who asks for a scope
// is put into dir.
type manager struct {
	l    *loner
	dir  string // a cgroup of the user's; "": no answer is given
	sock net.Listener

	mu    sync.Mutex
	asked [][]uint32 // the processes of each request
}

// manage makes a runtime directory with a manager.
func (l *loner) manage(dir string) *manager {
	l.t.Helper()
	path := filepath.Join(l.home, "run", "systemd")
	if err := os.MkdirAll(path, 0o700); err != nil {
		l.t.Fatal(err)
	}
	for _, d := range []string{path, filepath.Dir(path)} {
		if err := os.Chown(d, l.uid(), lonerGID); err != nil {
			l.t.Fatal(err)
		}
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(path, "private")})
	}
	if err != nil {
		l.t.Fatal(err)
	}
	if err := os.Chown(filepath.Join(path, "private"), l.uid(), lonerGID); err != nil {
		l.t.Fatal(err)
	}
	// Who listens is who answers (SO_PEERCRED, unix(7)).
	if err := lostthread.Run(func() error {
		uid := uintptr(l.uid())
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uid, uid, uid); errno != 0 {
			return errno
		}
		return unix.Listen(fd, 8)
	}); err != nil {
		l.t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "private")
	defer f.Close()
	m := &manager{l: l, dir: dir}
	if m.sock, err = net.FileListener(f); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = m.sock.Close() })
	go m.serve()
	return m
}

func (m *manager) serve() {
	for {
		c, err := m.sock.Accept()
		if err != nil {
			return
		}
		m.answer(c)
		_ = c.Close()
	}
}

func (m *manager) answer(c net.Conn) {
	in := bufio.NewReader(c)
	for range 2 { // AUTH and BEGIN
		if _, err := in.ReadString('\n'); err != nil {
			return
		}
	}
	_, _ = io.WriteString(c, "OK 0123456789abcdef0123456789abcdef\r\n")
	call, err := dbus.DecodeMessage(in)
	if err != nil {
		m.l.t.Error(err)
		return
	}
	var pids []uint32
	for _, p := range call.Body[2].([][]any) {
		if p[0] == "PIDs" {
			pids = p[1].(dbus.Variant).Value().([]uint32)
		}
	}
	m.mu.Lock()
	m.asked = append(m.asked, pids)
	m.mu.Unlock()
	if m.dir == "" {
		_, _ = io.Copy(io.Discard, in) // until the other end has had enough
		return
	}
	for _, pid := range pids {
		if err := os.WriteFile(filepath.Join(m.dir, "cgroup.procs"), []byte(strconv.Itoa(int(pid))), 0); err != nil {
			m.l.t.Error(err)
		}
	}
	body := []any{uint32(1), dbus.ObjectPath("/org/freedesktop/systemd1/job/1"), call.Body[0], "done"}
	done := dbus.Message{Type: dbus.TypeSignal, Body: body, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldPath:      dbus.MakeVariant(dbus.ObjectPath("/org/freedesktop/systemd1")),
		dbus.FieldInterface: dbus.MakeVariant("org.freedesktop.systemd1.Manager"),
		dbus.FieldMember:    dbus.MakeVariant("JobRemoved"),
		dbus.FieldSignature: dbus.MakeVariant(dbus.SignatureOf(body...)),
	}}
	var b bytes.Buffer
	if err := done.EncodeTo(&b, binary.LittleEndian); err != nil {
		m.l.t.Error(err)
	}
	_, _ = c.Write(b.Bytes())
}

// requests are the requests so far.
func (m *manager) requests() [][]uint32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.asked)
}

// exec is a run whose user has the runtime directory of a manager.
func (m *manager) exec(args ...string) *exec.Cmd {
	cmd := m.l.as(append([]string{agentguard(), "exec", "--mode", "ro"}, args...)...)
	cmd.Env = append(cmd.Env, "XDG_RUNTIME_DIR="+filepath.Join(m.l.home, "run"))
	return cmd
}

// A run without a cgroup of its own asks the user's service manager for one, once, for
// itself and its process outside; one that has such a cgroup asks nobody.
func TestUserNSScope(t *testing.T) {
	l := alone(t)
	_, dir := l.ownCgroup()
	m := l.manage(dir)
	if out, errs, status := l.finish(m.exec("-q", "--", "sh", "-c", "cat /proc/self/cgroup")); status != 0 || !strings.Contains(out, "0::/\n") {
		t.Errorf("%d %q %q", status, out, errs)
	}
	if n := m.requests(); len(n) != 1 || len(n[0]) != 2 {
		t.Errorf("asked for %v", n)
	}
	l.undivided(dir)
	if out, _, _ := l.finish(m.exec("--dry-run", "--json", "-", "--", "true")); !strings.Contains(out, `"cgroup_delegated": "`+dir+`"`) {
		t.Error(out)
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	before := len(m.requests())
	l.undivided(dir)
	cmd := m.exec("-q", "--", "true")
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(f.Fd())
	if _, errs, status := l.finish(cmd); status != 0 || len(m.requests()) != before {
		t.Errorf("%d %q: %d requests", status, errs, len(m.requests())-before)
	}
	for _, left := range l.cgroups(dir) { // a scope goes as a whole
		if !strings.HasSuffix(left, ".own") {
			t.Errorf("%q is left", left)
		}
	}
}

// undivided takes the controllers of a cgroup's children away, as who delegates does before
// it puts another process there.
func (l *loner) undivided(dir string) {
	l.t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	if err != nil {
		l.t.Fatal(err)
	}
	for _, c := range strings.Fields(string(b)) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("-"+c), 0); err != nil {
			l.t.Fatal(err)
		}
	}
}

// A manager that does not answer is not waited for, and the plan says what it lacks, and why.
func TestUserNSScopeSilent(t *testing.T) {
	l := alone(t)
	m := l.manage("")
	out, errs, status := l.finish(m.exec("--dry-run", "--", "true"))
	if status != 0 || !strings.Contains(out, "systemd's user manager was asked for one in vain") || !strings.Contains(out, "timeout") || len(m.requests()) != 1 {
		t.Errorf("%d %q %v\n%s", status, errs, m.requests(), out)
	}
}

// What a real manager gives, in namespaces of the test's own.
func TestUserNSScopeSystemd(t *testing.T) {
	systemd := "/lib/systemd/systemd"
	if _, err := os.Stat(systemd); err != nil {
		testenv.Missing(t, "systemd", err.Error())
	}
	l := alone(t)
	layout, dir := l.ownCgroup()
	// Who forks stays outside: the new root of cgroups is to have no process of its own.
	cmd := exec.Command("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", `echo 0 >"$0/cgroup.procs"; exec unshare --cgroup sh -c "$1"`, dir, managed)
	cmd.Dir, cmd.Env = l.work, []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + l.home, "AGENTGUARD=" + agentguard(), "AGENTGUARD_SOCKET=none",
		"XDG_RUNTIME_DIR=/run/user", "UID=" + strconv.Itoa(l.uid()), "GID=" + strconv.Itoa(lonerGID), "SYSTEMD=" + systemd,
	}
	out, errs, status := l.finish(cmd)
	l.until("what was in the namespaces is gone", func() bool { return len(l.processes()) == 0 })
	for _, d := range []string{"user/manager/app.slice", "user/manager/init.scope", "user/manager", "user/session", "user", "init"} {
		if err := unix.Rmdir(filepath.Join(dir, d)); err != nil && err != unix.ENOENT {
			t.Error(d, err)
		}
	}
	if strings.Contains(errs, "no manager") {
		testenv.Missing(t, "systemd", errs)
	}
	if len(layout.V1) > 0 { // the controllers are not v2's to delegate
		out = strings.Replace(out, "\"missing_controllers\"\n", "", 1)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if status != 0 || len(lines) != 4 || !strings.Contains(lines[0], "/user/manager/app.slice/agentguard-") || lines[1] != "gone" || lines[2] != "up" || lines[3] != "gone" {
		t.Errorf("%d %q\n%s", status, out, errs)
	}
}

// managed starts a manager of a user, and runs of that user in a session that is not the
// user's to divide. It is the first process of its namespaces.
const managed = `
set -e
top=/sys/fs/cgroup
umount -R $top
mount -t cgroup2 none $top
mount -t tmpfs none /run
mkdir -p /run/systemd/system /run/user $top/init $top/user/session $top/user/manager
echo $$ >$top/init/cgroup.procs
for d in $top $top/user; do
	for c in memory pids; do echo +$c >$d/cgroup.subtree_control || :; done 2>/dev/null
done
for d in user user/manager; do
	for f in . cgroup.procs cgroup.subtree_control cgroup.threads; do chown $UID:$GID $top/$d/$f; done
done
chown $UID:$GID /run/user
chmod 700 /run/user
units=$HOME/.config/systemd/user
mkdir -p $units
printf '[Unit]\nDefaultDependencies=no\n' >$units/test.target
chown -R $UID:$GID $HOME/.config
enter() { # CGROUP COMMAND...: as the user, in the place of this shell
	exec sh -c 'echo $$ >/sys/fs/cgroup/user/$0/cgroup.procs; exec setpriv --reuid $UID --regid $GID --clear-groups "$@"' "$@"
}
until_() { # CONDITION: two minutes at most
	n=0
	until eval "$1"; do n=$((n + 1)); [ $n -lt 2400 ] || { echo "never: $1" >&2; exit 1; }; sleep 0.05; done
}
enter manager $SYSTEMD --user --unit=test.target --log-target=console >/dev/null 2>$HOME/log &
manager=$!
until_ '[ -S /run/user/systemd/private ] || ! kill -0 $manager'
kill -0 $manager || { echo "no manager: $(cat $HOME/log)" >&2; exit 1; }
scopes="find $top/user/manager -name 'agentguard-*.scope'"
(enter session $AGENTGUARD exec --mode ro --dry-run --json - -- true) | grep -o '"cgroup_delegated": "[^"]*"\|"missing_controllers"\|"no_scope"'
until_ '[ -z "$(eval $scopes)" ]'
echo gone
enter session $AGENTGUARD exec -q --mode ro -- sh -c 'echo up; exec sleep 1000' &
run=$!
until_ '[ -n "$(eval $scopes)" ]'
until_ 'ls $(eval $scopes) | grep -q "\.run$" && [ -n "$(cat $(eval $scopes)/*.run/cgroup.procs)" ]'
until_ 'tr "\0" " " <$(for p in $(cat $(eval $scopes)/*.run/cgroup.procs); do echo /proc/$p/cmdline; done | tail -n 1) | grep -q "sleep 1000"'
kill -9 $run
until_ '[ -z "$(eval $scopes)" ]'
echo gone
`
