package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// quantile returns the value below which the fraction q of times lies (the
// lower neighbour, so that it is a time that was measured). times is not empty.
func quantile(times []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[int(q*float64(len(sorted)-1))]
}

// table prints a line a row: minimum, lower quartile, median, and the medians'
// ratios to the first row and to each later reference.
func table(w io.Writer, rows []*row) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(out, "\tmin\tp25\tmedian\t")
	for _, ref := range rows {
		fmt.Fprintf(out, "x %s\t", ref.name)
	}
	fmt.Fprintln(out)
	for _, r := range rows {
		fmt.Fprintf(out, "%s\t", r.name)
		for _, q := range []float64{0, 0.25, 0.5} {
			fmt.Fprintf(out, "%.2f\t", float64(quantile(r.times, q))/float64(time.Millisecond))
		}
		for _, ref := range rows {
			fmt.Fprintf(out, "%.2f\t", float64(quantile(r.times, 0.5))/float64(quantile(ref.times, 0.5)))
		}
		fmt.Fprintln(out)
	}
	return out.Flush()
}

// step is one of agentguard's own steps, as `exec -v` logs them: STEP_at=BEGAN
// and STEP_us=TOOK in one line. Those of the birth and of the plan go on beside
// each other.
type step struct {
	name     string
	at, took time.Duration
}

// Two more rows, of what a process cannot time itself.
const (
	around = "(process: start, flags, policy, exit)"
	whole  = "(all)"
)

// stages runs the sandbox again with -v and prints when each of its steps begins
// and how long it takes.
func stages(w io.Writer, sandbox []string, rounds int) error {
	log, err := os.CreateTemp("", "agentguard-bench-*")
	if err != nil {
		return err
	}
	defer func() { _ = errors.Join(log.Close(), os.Remove(log.Name())) }()
	argv := append(slices.Clone(sandbox), "-v", "--", "/bin/true")
	var order []string
	starts, took := map[string][]time.Duration{}, map[string][]time.Duration{}
	note := func(s step) {
		if took[s.name] == nil {
			order = append(order, s.name)
		}
		starts[s.name], took[s.name] = append(starts[s.name], s.at), append(took[s.name], s.took)
	}
	for range rounds {
		if err := log.Truncate(0); err != nil {
			return err
		}
		all, err := once(&row{argv: argv}, log)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(log.Name())
		if err != nil {
			return err
		}
		list, err := readTiming(string(text))
		if err != nil {
			return err
		}
		var end time.Duration
		for _, s := range list {
			note(s)
			end = max(end, s.at+s.took)
		}
		note(step{around, 0, all - end})
		note(step{whole, 0, all})
	}
	return breakdown(w, order, starts, took)
}

// breakdown prints a line a step, in the order of the first run.
func breakdown(w io.Writer, order []string, starts, took map[string][]time.Duration) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, "microseconds\tbegins (median)\ttakes min\tp25\tmedian\t")
	for _, s := range order {
		begins := fmt.Sprint(quantile(starts[s], 0.5).Microseconds())
		if s == around || s == whole {
			begins = ""
		}
		fmt.Fprintf(out, "%s\t%s\t%d\t%d\t%d\t\n", s, begins, quantile(took[s], 0).Microseconds(),
			quantile(took[s], 0.25).Microseconds(), quantile(took[s], 0.5).Microseconds())
	}
	return out.Flush()
}

// readTiming finds the steps in the operational log, sorted by their beginning.
func readTiming(log string) ([]step, error) {
	at, us := map[string]time.Duration{}, map[string]time.Duration{}
	for _, word := range strings.Fields(log) {
		key, value, _ := strings.Cut(word, "=")
		n, err := strconv.ParseInt(value, 10, 64)
		if name, ok := strings.CutSuffix(key, "_at"); ok && err == nil {
			at[name] = time.Duration(n) * time.Microsecond
		} else if name, ok := strings.CutSuffix(key, "_us"); ok && err == nil {
			us[name] = time.Duration(n) * time.Microsecond
		}
	}
	var list []step
	for name, began := range at {
		list = append(list, step{name, began, us[name]})
	}
	if len(list) == 0 {
		return nil, errors.New("no timing in the log: this agentguard does not measure itself")
	}
	slices.SortFunc(list, func(a, b step) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.name, b.name)) })
	return list, nil
}
