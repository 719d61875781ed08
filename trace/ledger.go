package trace

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// A ledger proves from the file alone that nothing of the kernel's is missing
// unsaid. The kernel numbers its records by CPU; for each CPU
//
//	events = kept + lost + folded + dropped
//
// where events, folded and dropped are counts of the summary ("cpu.N.events"),
// kept are the lines with that cpu, and lost is what loss records say of it.
// docs/seal.md has the terms.
type ledger struct {
	cpus map[uint32]*cpuTally
	over bool // more CPUs than a kernel can have
	told bool // a loss record cannot be true

	totals bool // the summary has the kernel's
}

type cpuTally struct {
	kept, lost uint64 // of lines
	last       uint64 // highest number named
	cpuTotals
}

// cpuTotals are the summary's.
type cpuTotals struct{ events, folded, dropped uint64 }

// maxCPUs is the kernel's largest CONFIG_NR_CPUS.
const maxCPUs = 8192

func (l *ledger) at(cpu uint32) *cpuTally {
	if l.cpus == nil {
		l.cpus = map[uint32]*cpuTally{}
	}
	t := l.cpus[cpu]
	if t == nil {
		t = &cpuTally{}
		if len(l.cpus) >= maxCPUs {
			l.over = true
			return t
		}
		l.cpus[cpu] = t
	}
	return t
}

// line enters one record.
func (l *ledger) line(e *Event) {
	if e.CPUSeq != 0 {
		t := l.at(e.CPU)
		t.kept++
		t.last = max(t.last, e.CPUSeq)
	}
	if e.Loss.numbered() {
		t := l.at(uint32(e.Loss.CPU))
		t.lost += e.Loss.Count
		t.last = max(t.last, e.Loss.Last)
		l.told = l.told || e.Loss.Last < e.Loss.First || e.Loss.Count > e.Loss.Last-e.Loss.First+1
	}
	if e.Kind != KindSummary {
		return
	}
	for _, c := range e.Counts {
		if cpu, total := cutCPU(c.Name); total != nil {
			*total(&l.at(cpu).cpuTotals) = c.N
			l.totals = l.totals || strings.HasSuffix(c.Name, ".events")
		}
	}
}

// forget takes one record out again. The highest number stays: it was the kernel's.
func (l *ledger) forget(e *Event) {
	if e.CPUSeq != 0 {
		l.at(e.CPU).kept--
	}
	if e.Loss.numbered() {
		l.at(uint32(e.Loss.CPU)).lost -= e.Loss.Count
	}
}

// counts are a writer's own terms of the equation, for the summary.
func (l *ledger) counts() []Count {
	var out []Count
	for _, cpu := range l.sorted() {
		t := l.cpus[cpu]
		for which, n := range map[string]uint64{"folded": t.folded, "dropped": t.dropped} {
			if n > 0 {
				out = append(out, Count{fmt.Sprintf("cpu.%d.%s", cpu, which), n})
			}
		}
	}
	slices.SortFunc(out, func(a, b Count) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (l *ledger) sorted() []uint32 {
	return slices.Sorted(maps.Keys(l.cpus))
}

// numbered reports whether a loss says which numbers of which CPU are missing.
func (l *Loss) numbered() bool { return l.Class != "" && l.First != 0 && l.CPU >= 0 }

// cutCPU takes the name of a count of one CPU apart; nil where it is another.
func cutCPU(name string) (cpu uint32, total func(*cpuTotals) *uint64) {
	rest, ok := strings.CutPrefix(name, "cpu.")
	number, which, ok2 := strings.Cut(rest, ".")
	n, err := strconv.ParseUint(number, 10, 32)
	if !ok || !ok2 || err != nil {
		return 0, nil
	}
	switch which {
	case "events":
		total = func(t *cpuTotals) *uint64 { return &t.events }
	case "folded":
		total = func(t *cpuTotals) *uint64 { return &t.folded }
	case "dropped":
		total = func(t *cpuTotals) *uint64 { return &t.dropped }
	}
	return uint32(n), total
}

// findings says where the numbers do not add up, in plain words.
func (l *ledger) findings() []string {
	var out []string
	if l.over {
		out = append(out, "more CPUs are named than a kernel can have")
	}
	if l.told {
		out = append(out, "a loss record counts more than it spans")
	}
	if !l.totals && len(l.cpus) > 0 {
		return append(out, "how many records the kernel made is not in the summary")
	}
	for _, cpu := range l.sorted() {
		t := l.cpus[cpu]
		if sum := t.kept + t.lost + t.folded + t.dropped; sum != t.events || t.last > t.events {
			out = append(out, fmt.Sprintf("CPU %d: the kernel made %d records, and %d are accounted for (%d kept, %d lost, %d folded, %d dropped; the last is number %d)",
				cpu, t.events, sum, t.kept, t.lost, t.folded, t.dropped, t.last))
		}
	}
	return out[:min(len(out), maxFindings)]
}
