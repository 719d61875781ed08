package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
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

// timing is the part of `agentguard exec --json` that is read here: how long
// each stage of a run took, in the order in which they ended.
type timing struct {
	Timing []struct {
		Stage string `json:"stage"`
		Us    int64  `json:"us"` // microseconds
	} `json:"timing"`
}

// stages runs the sandbox again with --json and prints the median of every
// stage that it names.
func stages(w io.Writer, sandbox []string, rounds int) error {
	dir, err := os.MkdirTemp("", "agentguard-bench-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "result.json")
	argv := append(slices.Clone(sandbox), "--json", name, "--", "/bin/true")
	var order []string
	took := map[string][]time.Duration{}
	for range rounds {
		if _, err := once(argv); err != nil {
			return err
		}
		got, err := readTiming(name)
		if err != nil {
			return err
		}
		for _, s := range got.Timing {
			if took[s.Stage] == nil {
				order = append(order, s.Stage)
			}
			took[s.Stage] = append(took[s.Stage], time.Duration(s.Us)*time.Microsecond)
		}
	}
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, "stage, microseconds\tmin\tp25\tmedian\t")
	for _, s := range order {
		fmt.Fprintf(out, "%s\t%d\t%d\t%d\t\n", s, quantile(took[s], 0).Microseconds(),
			quantile(took[s], 0.25).Microseconds(), quantile(took[s], 0.5).Microseconds())
	}
	return out.Flush()
}

// readTiming reads and removes the file name.
func readTiming(name string) (timing, error) {
	var got timing
	text, err := os.ReadFile(name)
	if err != nil {
		return got, err
	}
	if err := json.Unmarshal(text, &got); err != nil {
		return got, fmt.Errorf("%s: %w", name, err)
	}
	if len(got.Timing) == 0 {
		return got, fmt.Errorf("%s: no \"timing\": this agentguard does not measure itself", name)
	}
	return got, os.Remove(name)
}
