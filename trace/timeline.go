package trace

import (
	"fmt"
	"io"
	"strconv"
)

// timeline shows the acts that tell the story, in their order, with the time
// since the first record. Whole, it shows every record.
type timeline struct {
	whole  bool
	begin  uint64 // ns; of the first record
	list   []string
	bytes  int
	total  uint64
	hidden uint64
}

// topMoments is how many lines a view that was not asked for all of them shows.
const topMoments = 40

func newTimeline(whole bool) *timeline { return &timeline{whole: whole} }

func (t *timeline) add(e *Event) {
	if t.begin == 0 {
		t.begin = e.Mono
	}
	if !t.whole && !telling(e) {
		return
	}
	t.total++
	if !t.whole && len(t.list) >= topMoments || t.bytes > maxViewBytes {
		t.hidden++
		return
	}
	s := Moment(e, t.begin)
	t.bytes += len(s)
	t.list = append(t.list, s)
}

// telling reports whether a short story of the run would name the event.
func telling(e *Event) bool {
	switch e.Kind {
	case KindExec, KindLimit, KindLoss, KindCgroupMove:
		return true
	case KindExit:
		return e.Signal != 0 || e.ExitCode != 0
	}
	return e.Denied() || onNetwork(e)
}

func (t *timeline) write(w io.Writer, _ *Report) {
	writeHeading(w, "timeline", t.total)
	for _, s := range t.list {
		fmt.Fprintf(w, "  %s\n", s)
	}
	if t.hidden > 0 {
		fmt.Fprintf(w, "  (%d more: trace show --only timeline)\n", t.hidden)
	}
}

// Moment renders one record as a line: its time since begin (ns of
// CLOCK_BOOTTIME), its process, and what it says.
func Moment(e *Event, begin uint64) string {
	who := "-"
	if e.Proc.Pid != 0 {
		who = strconv.FormatUint(uint64(e.Proc.Pid), 10)
	}
	return fmt.Sprintf("%9s  %7s  %s", since(e.Mono, begin), who, Describe(e))
}

// since renders "+1.234s"; records of several processors may be slightly out of
// order.
func since(mono, begin uint64) string {
	if mono < begin {
		return "-" + seconds(begin-mono)
	}
	return "+" + seconds(mono-begin)
}
