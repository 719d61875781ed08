package supervisor

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/trace"
)

// asking is a run whose notifier waits for the listener of a PID 2, which has the other end.
func asking(t *testing.T) (r *Run, pid2 *os.File) {
	t.Helper()
	r = &Run{plan: &Plan{Notify: true}, rec: &recorder{plan: recordPlan(), w: trace.NewWriter(&bytes.Buffer{}, trace.Options{})}}
	must(t, r.openNotify())
	fd, err := unix.FcntlInt(r.asked.theirs.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	must(t, err)
	pid2 = os.NewFile(uintptr(fd), "listener")
	t.Cleanup(func() { _ = pid2.Close() }) // it may be closed
	return r, pid2
}

const generous = 2 * time.Minute

// A PID 2 that dies before it has sent its listener is not waited for.
func TestNotifierOfOneThatDied(t *testing.T) {
	r, pid2 := asking(t)
	r.startNotify()
	must(t, r.asked.sent())
	must(t, pid2.Close())
	if !r.asked.emptied(generous) {
		t.Error("who died is said to live")
	}
	must(t, r.asked.sent())
	must(t, r.asked.close())
}

// One that still might send it is waited for no longer than the limit, and not by the end.
func TestNotifierOfOneThatDoesNotSend(t *testing.T) {
	r, _ := asking(t)
	r.startNotify()
	must(t, r.asked.sent())
	if r.asked.emptied(time.Millisecond) {
		t.Error("who lives is said to have ended")
	}
	must(t, r.asked.close())
}

// A notifier that was never started knows nothing, and neither does none.
func TestNotifierNotStarted(t *testing.T) {
	r, _ := asking(t)
	var none *notifier
	if r.asked.emptied(generous) || none.emptied(generous) {
		t.Error("it says that the run has ended")
	}
	must(t, none.sent())
	must(t, r.asked.close())
}

// The supervisor says that it has ended the rest only where it knows.
func TestOrphanFindings(t *testing.T) {
	for left, want := range map[bool]string{false: "has ended the rest", true: "does not know whether all of it has ended"} {
		r := &Run{orphaned: true, left: left}
		if got := strings.Join(r.orphanFindings(), "\n"); !strings.HasSuffix(got, want) || !strings.HasPrefix(got, "the guardian of the run was killed from outside") {
			t.Errorf("%v: %q", left, got)
		}
	}
	if got := (&Run{}).orphanFindings(); got != nil {
		t.Errorf("%q", got)
	}
}
