package trace_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/agentguard/agentguard/trace"
)

// sample writes a short record, as a run leaves it.
func sample() string {
	var b strings.Builder
	w := trace.NewWriter(&b, trace.Options{Mono: 1, Wall: time.Unix(1796000000, 0), BootID: "5b1f0a2c-0000-4000-8000-000000000000"})
	proc := trace.Proc{Pid: 4242, Tid: 4242, Start: 1}
	for _, e := range []trace.Event{
		{Kind: trace.KindStart, Mono: 1, Run: "20261129-163624-7f3k2q"},
		{Kind: trace.KindExec, Phase: trace.PhaseCommand, Mono: 2, Proc: proc, Path: []byte("/usr/bin/cat"), PathSource: trace.PathKernel, Argv: [][]byte{[]byte("cat"), []byte("/etc/shadow")}},
		{
			Kind: trace.KindOpen, Phase: trace.PhaseCommand, Mono: 3, Proc: proc, Path: []byte("/etc/shadow"), PathSource: trace.PathUser, Access: "r", Errno: 13,
			Verdict: trace.VerdictDeny, Layer: trace.LayerDAC, Certainty: trace.Certain,
		},
	} {
		if err := w.Append(&e); err != nil {
			return err.Error()
		}
	}
	if err := w.Close(&trace.Event{Mono: 4, ExitCode: 1, Reason: "exit"}); err != nil {
		return err.Error()
	}
	return b.String()
}

// A record is read as a stream. What can be said of it as a whole is known at its end.
func ExampleReader() {
	r := trace.NewReader(strings.NewReader(sample()))
	var e trace.Event
	for {
		err := r.Next(&e)
		if err == io.EOF {
			break
		}
		var line *trace.LineError
		if errors.As(err, &line) {
			continue // one line that cannot be read: the report counts it
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		if e.Verdict == trace.VerdictDeny {
			fmt.Println(trace.Sentence(&e))
		}
	}
	verdict, why := r.Report().Judge()
	fmt.Println(verdict, why)
	// Output:
	// denied open /etc/shadow (EACCES; dac)
	// complete []
}

// Show prints a record for people, whole or in parts, and judges it.
func ExampleShow() {
	verdict, err := trace.Show(os.Stdout, strings.NewReader(sample()), "denied")
	if err != nil {
		fmt.Println(err)
	}
	_ = verdict // trace.Unsealed, Incomplete or Altered: what is shown is not all there was
	// Output:
	// record    complete, 4 records
	// run       20261129-163624-7f3k2q, started 2026-11-30T00:53:20.000Z
	//
	// denied 1
	//         1  denied open /etc/shadow (EACCES; dac)
}
