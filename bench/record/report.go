package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// median returns the lower middle of times, so that it is one that was measured;
// times is not empty.
func median(times []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(times))[(len(times)-1)/2]
}

// table prints medians and their ratios to those of the first row; start are the
// same rows with the load that does nothing.
func table(w io.Writer, rows, start []*row) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, "\twall ms\tx\tless start\tcpu ms\tx\tless start\t")
	for i, r := range rows {
		wall, cpu := median(r.wall), median(r.cpu)
		fmt.Fprintf(out, "%s\t%.0f\t%.2f\t%s\t", r.name, ms(wall), ratio(wall, median(rows[0].wall)),
			rest(wall-median(start[i].wall), median(rows[0].wall)-median(start[0].wall)))
		fmt.Fprintf(out, "%.0f\t%.2f\t%s\t\n", ms(cpu), ratio(cpu, median(rows[0].cpu)),
			rest(cpu-median(start[i].cpu), median(rows[0].cpu)-median(start[0].cpu)))
	}
	return out.Flush()
}

// rest is the ratio of what is left of two times without that of the start; "-"
// where nothing is.
func rest(a, native time.Duration) string {
	if native <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", ratio(a, native))
}

// callTable prints a line a call and a column a kind of process, with ratios to the first.
func callTable(w io.Writer, callers []*caller) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, c := range callers {
		fmt.Fprintf(out, "\t%s\tx", c.name)
	}
	fmt.Fprintln(out, "\t")
	for i := range calls {
		fmt.Fprint(out, calls[i].name)
		var native time.Duration
		for k, c := range callers {
			var times []time.Duration
			for _, round := range c.times {
				times = append(times, round[i])
			}
			took := median(times)
			if k == 0 {
				native = took
			}
			fmt.Fprintf(out, "\t%d\t%.2f", took.Nanoseconds(), ratio(took, native))
		}
		fmt.Fprintln(out, "\t")
	}
	return out.Flush()
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func ratio(a, b time.Duration) float64 { return float64(a) / float64(max(b, 1)) }
