package main

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What a user's run stages is shown, continued, committed and discarded by that user; what
// belongs to others keeps its owner in all of it.
func TestUserNSChanges(t *testing.T) {
	l := alone(t)
	for _, dir := range []string{"a", "deep", "deep/er"} {
		if err := os.Mkdir(filepath.Join(l.work, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(filepath.Join(l.work, dir), l.uid(), lonerGID); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"a/one", "a/two", "top", "deep/er/z"} {
		l.write(filepath.Join(l.work, name), name)
	}
	roots := filepath.Join(l.work, "roots")
	if err := os.WriteFile(roots, []byte("x"), 0o644); err != nil { // root's, and the user's to delete
		t.Fatal(err)
	}
	const script = "echo new >n; chmod 0 n; rm a/one; rm -r deep; mkdir deep; echo y >deep/y; echo more >>top; mv a b"
	if _, errs, status := l.guard("exec", "-q", "--", "sh", "-c", script); status != 0 {
		t.Fatalf("%d %q", status, errs)
	}
	out, errs, status := l.guard("diff")
	for _, line := range []string{"A n", "D a/one", "A b/two", "D deep/er/z", "A deep/y", "M top"} {
		if !strings.Contains(out, "  "+line) || status != 0 {
			t.Errorf("diff lacks %q: %d %q %q", line, status, out, errs)
		}
	}
	if out, errs, status := l.guard("exec", "-q", "--continue", "last", "--", "sh", "-c", "cat b/two deep/y; ls; echo last >>top"); status != 0 || !strings.HasPrefix(out, "a/twoy\nb\ndeep\nn\nroots\ntop\n") {
		t.Errorf("continue: %d %q %q", status, out, errs)
	}
	if !exists(filepath.Join(l.work, "a/one")) || !exists(roots) {
		t.Error("the host was changed before the commit")
	}
	if out, errs, status := l.guard("commit"); status != 0 {
		t.Fatalf("commit: %d %q %q", status, out, errs)
	}
	b, err := os.ReadFile(filepath.Join(l.work, "top"))
	var st unix.Stat_t
	if err != nil || string(b) != "topmore\nlast\n" || unix.Stat(filepath.Join(l.work, "n"), &st) != nil || int(st.Uid) != l.uid() || st.Mode&0o777 != 0 {
		t.Errorf("%v %q, n of user %d with mode %o", err, b, st.Uid, st.Mode)
	}
	if exists(filepath.Join(l.work, "a")) || !exists(filepath.Join(l.work, "b/two")) || exists(filepath.Join(l.work, "deep/er")) {
		t.Error("not all of it was committed")
	}
	// Beside the run, from inside the namespaces: and what was thrown away stays away.
	if _, errs, status := l.guard("exec", "-q", "--commit", "success", "--", "sh", "-c", "rm -r b roots; echo q >q"); status != 0 || exists(filepath.Join(l.work, "b")) || exists(roots) || !exists(filepath.Join(l.work, "q")) {
		t.Errorf("--commit success: %d %q", status, errs)
	}
	if _, errs, status := l.guard("exec", "-q", "--", "sh", "-c", "echo d >d"); status != 0 {
		t.Errorf("%d %q", status, errs)
	}
	if _, errs, status := l.guard("discard"); status != 0 || exists(filepath.Join(l.work, "d")) {
		t.Errorf("discard: %d %q", status, errs)
	}
}

// A workspace of another group, as teams have it, keeps that group: the view of it could only be made
// with the user's own, and that is no change.
func TestUserNSGroup(t *testing.T) {
	l := alone(t)
	const team = lonerGID + 1
	if err := errors.Join(os.Chown(l.work, l.uid(), team), os.Chmod(l.work, 0o755)); err != nil {
		t.Fatal(err)
	}
	if _, errs, status := l.guard("exec", "--", "true"); status != 0 || errs != "" {
		t.Errorf("what changed nothing: %d %q", status, errs)
	}
	if _, errs, status := l.guard("exec", "-q", "--", "sh", "-c", "echo n >n; chmod 750 ."); status != 0 {
		t.Fatalf("%d %q", status, errs)
	}
	if out, errs, status := l.guard("diff"); status != 0 || !strings.Contains(out, "  M ./  (mode 0755 -> 0750)\n") || !strings.Contains(out, "  A n ") {
		t.Errorf("diff: %d %q %q", status, out, errs)
	}
	if _, errs, status := l.guard("commit"); status != 0 {
		t.Fatalf("commit: %d %q", status, errs)
	}
	var st unix.Stat_t
	if err := unix.Stat(l.work, &st); err != nil || int(st.Gid) != team || st.Mode&0o7777 != 0o750 || !exists(filepath.Join(l.work, "n")) {
		t.Errorf("%v, group %d, mode %o", err, st.Gid, st.Mode)
	}
}

// A directory with a mount in it cannot be shown copy-on-write by a user namespace, and the
// mount and what else to do are named; root of a container's user namespace is a user too.
func TestUserNSPlaces(t *testing.T) {
	l := alone(t)
	inside := func(script string) (string, string, int) {
		cmd := l.as("bash", "-c", script, agentguard())
		cmd.SysProcAttr = &unix.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
		return l.finish(cmd)
	}
	const mounted = `mkdir sub && mount -t tmpfs t sub && echo s >sub/s && chmod 777 sub && `
	if _, errs, status := inside(mounted + l.user() + ` "$0" exec -q -- true`); status != 125 || !strings.Contains(errs, "work/sub") || !strings.Contains(errs, "--mode ro or rw") {
		t.Errorf("cow: %d %q", status, errs)
	}
	if out, errs, status := inside("rmdir sub;" + mounted + l.user() + ` "$0" exec -q --mode ro -- cat sub/s`); status != 0 || out != "s\n" {
		t.Errorf("ro: %d %q %q", status, out, errs)
	}
	const root = `cd /usr/share && unshare --user --map-root-user --mount "$0" exec -q --state /tmp/agentguard-ns-root-$$ --mode ro -- sh -c 'id -u; grep CapEff /proc/self/status'; s=$?; rm -rf /tmp/agentguard-ns-root-$$; exit $s`
	if out, errs, status := inside(root); status != 0 || out != "0\nCapEff:\t0000000000000000\n" {
		t.Errorf("root of a user namespace: %d %q %q", status, out, errs)
	}
}

// user is the shell text that becomes this user.
func (l *loner) user() string {
	return "setpriv --reuid " + strconv.Itoa(l.uid()) + " --regid " + strconv.Itoa(lonerGID) + " --clear-groups"
}
