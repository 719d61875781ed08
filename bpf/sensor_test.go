package bpf

import (
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// acts are what children of the tests do.
var acts = map[string]func(args []string) error{
	"getppid": func(args []string) error {
		n, err := strconv.Atoi(args[0])
		for range n {
			unix.Getppid()
		}
		return err
	},
}

func TestCallsAreCountedExactly(t *testing.T) {
	h := newHost(t)
	const n = 100000
	_, stats := h.observe(h.open(), RunConfig{}, "getppid", strconv.Itoa(n))
	for _, call := range stats.Calls {
		if call.NR == unix.SYS_GETPPID {
			if call.Calls != n {
				t.Errorf("counted %d getppid, want %d", call.Calls, n)
			}
			return
		}
	}
	t.Error("no getppid counted", stats, os.Getpid())
}
