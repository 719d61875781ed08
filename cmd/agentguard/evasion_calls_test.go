package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/agentguard/agentguard/trace"
)

// checkInvented wants what a filter of the command's own may have answered marked, failures
// that are counted too, and nothing that came before the filter.
func checkInvented(r *evidence) error {
	if !strings.Contains(r.out, "kept") || !strings.Contains(r.out, "shown") || strings.Contains(r.out, "gone") {
		return fmt.Errorf("the filter has answered nothing: %q", r.out)
	}
	act := func(kind trace.Kind, name string, errno int32, filtered bool) []trace.Event {
		return r.find(kind, func(e *trace.Event) bool {
			return string(e.Path) == r.in(name) && e.Errno == errno && e.Filtered == filtered
		})
	}
	missing := uint64(0)
	for _, e := range act(trace.KindOpen, "missing", 2, true) {
		missing += e.Times()
	}
	if missing != 3 {
		return fmt.Errorf("%d failed opens are marked, want 3", missing)
	}
	return errors.Join(
		want("a real unlink", act(trace.KindUnlink, "gone", 0, false)),
		want("an invented one", act(trace.KindUnlink, "kept", 0, true)),
		want("an invented one of a child", act(trace.KindUnlink, "shown", 0, true)),
		want("an invented refusal", act(trace.KindChmod, "shown", 1, true)),
		want("a real mkdir behind the filter", act(trace.KindMkdir, "made", 0, true)))
}

func checkEgress(r *evidence) error {
	var errs []error
	for _, addr := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"} {
		found := false
		for _, e := range r.events {
			found = found || e.Denied() && e.Addr.IsValid() && e.Addr.Unmap().String() == addr
		}
		if !found {
			errs = append(errs, fmt.Errorf("%s is not in the record", addr))
		}
	}
	if n := len(r.find(trace.KindSocket, (*trace.Event).Denied)); n < 4 {
		errs = append(errs, fmt.Errorf("%d sockets refused", n))
	}
	return errors.Join(errs...)
}

func checkTampering(r *evidence) error {
	if err := deny(trace.KindDeny, "ptrace", "process_vm_readv", "process_vm_writev", "bpf", "perf_event_open", "kexec_file_load", "finit_module", "reboot")(r); err != nil {
		return err
	}
	return want("a signal to pid 1", r.find(trace.KindSignal, (*trace.Event).Denied))
}

func checkCompat(r *evidence) error {
	return want("the end", r.find(trace.KindExit, func(e *trace.Event) bool { return e.Signal == 31 }))
}
