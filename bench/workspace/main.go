// Command workspace measures what a copy-on-write workspace costs, in interleaved
// rounds so that a noisy machine disturbs all rows alike:
//
//		workspace [-agentguard FILE] [-bwrap FILE] [-rounds N] [-whole] [-only PART,...] [-dir DIR]
//
//	  - start: /bin/true in workspaces of 10 and 10 000 files (-whole: 500 000 too)
//	  - work: reading, writing and asking for the status of files, natively in a copy,
//	    in an overlay without a sandbox, in bubblewrap's (0.11 and newer), and under
//	    agentguard with its record
//	  - commit: of a change set of 1000 files (-whole: 20 000) beside cp -a of them
//
// Read ratios, not milliseconds. With -dir the trees of "start" are made once and kept:
// 500 000 files take longer to make than all that is measured.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

type bench struct {
	dir, self      string
	kept           bool   // dir is the caller's
	only           string // parts, with commas; "": all
	agentguard     string
	bwrap          string // "": none that has overlays
	rounds         int
	starts         []int // files of each workspace
	files, commits int
}

func main() {
	b := &bench{files: 1000, commits: 1000, starts: []int{10, 10000}}
	guard := flag.String("agentguard", "bin/agentguard", "the agentguard binary")
	bwrap := flag.String("bwrap", "bwrap", "the bubblewrap binary; left out when it has no overlays")
	flag.IntVar(&b.rounds, "rounds", 3, "measured rounds; one more runs first to warm up")
	whole := flag.Bool("whole", false, "the large sizes too: some minutes")
	work := flag.String("work", "", "what a started copy of this program does, in the directory that is its argument")
	flag.StringVar(&b.only, "only", "", "the parts that are measured: start,work,commit; all by default")
	flag.StringVar(&b.dir, "dir", "", "work in this directory and keep the trees of start there for the next time")
	flag.Parse()
	if *whole {
		b.starts, b.commits = append(b.starts, 500000), 20000
	}
	var err error
	if *work != "" {
		err = doWork(*work, flag.Arg(0), b.files)
	} else {
		err = b.run(*guard, *bwrap)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "workspace:", err)
		os.Exit(1)
	}
}

func (b *bench) run(guard, bwrap string) error {
	if b.rounds < 1 {
		return errors.New("-rounds: at least 1")
	}
	var err error
	if b.kept = b.dir != ""; !b.kept {
		if b.dir, err = os.MkdirTemp("", "agentguard-bench-*"); err != nil {
			return err
		}
		defer os.RemoveAll(b.dir)
	}
	if b.agentguard, err = filepath.Abs(guard); err != nil {
		return err
	}
	if b.self, err = os.Executable(); err != nil {
		return err
	}
	b.bwrap = withOverlay(bwrap)
	for _, part := range []struct {
		name string
		run  func() error
	}{{"start", b.start}, {"work", b.work}, {"commit", b.commit}} {
		if b.only != "" && !slices.Contains(strings.Split(b.only, ","), part.name) {
			continue
		}
		if err := part.run(); err != nil {
			return err
		}
	}
	return nil
}

// row is one contestant. before is not measured.
type row struct {
	name   string
	before func() error
	once   func() (time.Duration, error)
	times  []time.Duration
}

// measure runs every row once a round, each round beginning with another, and
// prints them with their ratio to the first.
func measure(title string, rounds int, rows []*row) error {
	for i := range rounds + 1 {
		for k := range rows {
			r := rows[(i+k)%len(rows)]
			if r.before != nil {
				if err := r.before(); err != nil {
					return fmt.Errorf("%s, %s: %w", title, r.name, err)
				}
			}
			took, err := r.once()
			if err != nil {
				return fmt.Errorf("%s, %s: %w", title, r.name, err)
			}
			if i > 0 {
				r.times = append(r.times, took)
			}
		}
	}
	fmt.Printf("%s (%d rounds, interleaved; milliseconds)\n", title, rounds)
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, "\tmin\tmedian\tx\t")
	for _, r := range rows {
		slices.Sort(r.times)
		fmt.Fprintf(out, "%s\t%.2f\t%.2f\t%.2f\t\n", r.name, ms(r.times[0]), ms(r.median()), float64(r.median())/float64(rows[0].median()))
	}
	return out.Flush()
}

func (r *row) median() time.Duration { return r.times[(len(r.times)-1)/2] }

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
