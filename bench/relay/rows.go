package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"slices"
	"text/tabwriter"
)

// reference is the row that ratios are to.
const reference = "SOCKS5 at the edge"

// row is one path from a client to the server.
type row struct {
	name string
	argv []string // of the client
	// relay returns the process that relays for the client of a run, and what ends it; nil: none does.
	relay func(run int) (pid int, stop func(), err error)

	tell io.WriteCloser
	said *json.Decoder
	pid  int // of the relay; 0: none
	end  []func() error
	got  [][]float64 // by column, a value for each round
}

// measure starts all clients and has them take turns, beginning with another one in each round.
func measure(rows []*row, rounds int) (err error) {
	for _, r := range rows {
		defer func() { err = errors.Join(err, r.stop()) }()
		if err := r.start(); err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
	}
	for i := range rounds + 1 {
		for m := range measures {
			for j := range rows {
				r := rows[(i+j)%len(rows)]
				if err := r.turn(m, i > 0); err != nil {
					return fmt.Errorf("%s: %s: %w", r.name, measures[m].name, err)
				}
			}
		}
	}
	return nil
}

func (r *row) start() error {
	cmd := exec.Command(r.argv[0], r.argv[1:]...)
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		return err
	}
	r.tell, r.said, r.got = in, json.NewDecoder(out), make([][]float64, len(columns))
	r.end = append(r.end, func() error { return errors.Join(in.Close(), cmd.Wait()) })
	var there []float64
	err := r.said.Decode(&there)
	if err == nil && r.relay != nil {
		var stop func()
		if r.pid, stop, err = r.relay(cmd.Process.Pid); err == nil {
			r.end = append(r.end, func() error { stop(); return nil })
		}
	}
	return err
}

func (r *row) stop() error {
	var err error
	for _, end := range r.end {
		err = errors.Join(err, end())
	}
	return err
}

// turn takes one measure.
func (r *row) turn(m int, count bool) error {
	before := cpuTime(r.pid)
	if _, err := fmt.Fprintln(r.tell, m); err != nil {
		return err
	}
	var values []float64
	if err := r.said.Decode(&values); err != nil {
		return err
	}
	values = append(values, cpuTime(r.pid)-before)
	if !count {
		return nil
	}
	for i, c := range columns {
		if c.measure == m {
			r.got[i] = append(r.got[i], values[c.value])
		}
	}
	return nil
}

// runClient says that it is there, and takes each measure that it is asked for.
func runClient(o *options) error {
	tell := json.NewEncoder(os.Stdout)
	if err := tell.Encode([]float64{}); err != nil {
		return err
	}
	in := bufio.NewReader(os.Stdin)
	for {
		var m int
		if _, err := fmt.Fscanln(in, &m); err != nil {
			return nil // the end
		}
		values, err := measures[m].take(o)
		if err != nil {
			return err
		}
		if err := tell.Encode(values); err != nil {
			return err
		}
	}
}

// columns of the table: which measure's which value. The last value is the CPU time.
var columns = []struct {
	title          string
	measure, value int
}{
	{"down MB/s", 0, 0},
	{"CPU ms", 0, 1},
	{"up MB/s", 1, 0},
	{"CPU ms", 1, 1},
	{"requests/s", 2, 0},
	{"CPU ms", 2, 1},
	{"connect us", 3, 0},
	{"connect+request us", 3, 1},
	{"CPU ms", 3, 2},
}

// table prints the medians, and the medians of the ratios to the reference in the same
// turn; then how far the ratios of the allowlist lie apart.
func table(w io.Writer, rows []*row, o *options) error {
	fmt.Fprintf(w, "%d rounds of %d MB, %d requests, %d connections; medians, and in brackets that of the ratios to %q;\n"+
		"CPU is the process's that relays, for the measure before it\n", o.rounds, o.megabytes, o.requests, o.requests/10, reference)
	base := rows[slices.IndexFunc(rows, func(r *row) bool { return r.name == reference })].got
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, c := range columns {
		fmt.Fprintf(out, "\t%s", c.title)
	}
	fmt.Fprintln(out, "\t")
	for _, r := range rows {
		fmt.Fprintf(out, "%s\t", r.name)
		for i, v := range r.got {
			fmt.Fprintf(out, "%.0f (%.2f)\t", quantile(v, 0.5), quantile(ratios(v, base[i]), 0.5))
		}
		fmt.Fprintln(out)
	}
	last := rows[len(rows)-1]
	fmt.Fprintf(out, "%s, middle half of the ratios\t", last.name)
	for i, v := range last.got {
		r := ratios(v, base[i])
		fmt.Fprintf(out, "%.2f to %.2f\t", quantile(r, 0.25), quantile(r, 0.75))
	}
	fmt.Fprintln(out)
	return out.Flush()
}

// ratios are those of each turn.
func ratios(v, base []float64) []float64 {
	out := make([]float64, 0, len(v))
	for i := range v {
		out = append(out, v[i]/base[i])
	}
	return out
}

// quantile is the value that a share q of the others is below.
func quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	v = slices.Sorted(slices.Values(v))
	return v[min(int(q*float64(len(v))), len(v)-1)]
}
