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

// table prints medians and their ratios to those of the first row.
func table(w io.Writer, rows []*row) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, "\twall ms\tx\tcpu ms\tx\t")
	wall, cpu := median(rows[0].wall), median(rows[0].cpu)
	for _, r := range rows {
		a, b := median(r.wall), median(r.cpu)
		fmt.Fprintf(out, "%s\t%.0f\t%.2f\t%.0f\t%.2f\t\n", r.name, ms(a), ratio(a, wall), ms(b), ratio(b, cpu))
	}
	return out.Flush()
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func ratio(a, b time.Duration) float64 { return float64(a) / float64(max(b, 1)) }
