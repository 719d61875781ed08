package supervisor

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentguard/agentguard/internal/lockdown"
	"github.com/agentguard/agentguard/internal/testenv"
)

// effective is what a thread of this process can use, and what it could.
func effective(t *testing.T) (now, permitted lockdown.Set) {
	t.Helper()
	b, err := os.ReadFile("/proc/thread-self/status")
	must(t, err)
	read := func(name string) lockdown.Set {
		_, rest, _ := bytes.Cut(b, []byte(name+":\t"))
		line, _, _ := bytes.Cut(rest, []byte("\n"))
		n, err := strconv.ParseUint(strings.TrimSpace(string(line)), 16, 64)
		must(t, err)
		return lockdown.Set(n)
	}
	return read("CapEff"), read("CapPrm")
}

// What a process lends for a run it cannot use while the command runs, and has afterwards,
// however the run ends.
func TestLentPrivileges(t *testing.T) {
	testenv.Root(t)
	held, err := lockdown.Held()
	must(t, err)
	if err := lockdown.Use(held, held); errors.Is(err, errors.ErrUnsupported) { // the race detector needs cgo
		testenv.Beyond(t, "capabilities of all threads", err.Error())
	}
	before, permitted := effective(t)
	want := lockdown.Of(livingCaps...)
	for _, script := range []string{"read x", "read x; exit 3", "read x; kill -9 $$"} {
		r, w, err := os.Pipe()
		must(t, err)
		var wait sync.WaitGroup
		wait.Go(func() {
			defer w.Close() // the command goes on
			for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
				now, could := effective(t)
				if now == want && could == permitted {
					return
				}
				if time.Now().After(end) {
					t.Errorf("%s: %x of %x while the command runs, not %x", script, now, could, want)
					return
				}
			}
		})
		withReserve(t, nil, t.TempDir(), script, func(c *Config) { c.Lends, c.Stdin = true, r })
		wait.Wait()
		must(t, r.Close())
		if now, could := effective(t); now != before || could != permitted {
			t.Errorf("%s: %x of %x afterwards", script, now, could)
		}
	}
}
