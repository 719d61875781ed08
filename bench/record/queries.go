package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"text/tabwriter"
	"time"
)

// question is a reader of many records.
type question struct {
	name string
	args []string // of agentguard, without --state
}

var questions = []question{
	{"ruled out by summaries", []string{"trace", "query", "kind = rename", "--all"}},
	{"few match", []string{"trace", "query", `kind = exec and path glob "**/uniq"`, "--all"}},
	{"all counted", []string{"trace", "query", "kind in (open, exec)", "--all", "--count-by", "path"}},
	{"the newest only", []string{"trace", "query", "kind = exec", "--all", "--limit", "5"}},
	{"show last", []string{"trace", "show", "last"}},
	{"ps", []string{"ps"}},
	{"runs ls", []string{"runs", "ls", "--limit", "0"}},
}

// measureQueries makes a state directory of as many runs as n, each the same
// record under another name, and asks it; the first tenth first, so that the
// table shows how the time grows.
func measureQueries(o *observers, dir string, n int) error {
	state := filepath.Join(dir, "state")
	work := filepath.Join(dir, "work")
	if err := os.MkdirAll(work, 0o755); err != nil {
		return err
	}
	first := &row{name: "the run", work: work, argv: o.sandbox(dir, []string{"/bin/sh", "-c", "ls /usr/bin | sort -r | uniq -c | head -n 1000 | wc -l; for i in 1 2 3 4 5; do cat /etc/hostname /etc/passwd; done"})}
	if _, _, err := first.once(); err != nil {
		return err
	}
	runs, err := filepath.Glob(filepath.Join(state, "runs", "*"))
	if err != nil || len(runs) != 1 {
		return errors.Join(err, fmt.Errorf("%d runs, want one", len(runs)))
	}
	sum, size, err := summary(filepath.Join(runs[0], "trace.jsonl"))
	if err != nil {
		return err
	}
	few := max(n/10, 1)
	var took [2][]answer
	for i, upTo := range []int{few, n} {
		if err := multiply(runs[0], upTo); err != nil {
			return err
		}
		for _, q := range questions {
			a, err := q.ask(o.agentguard, state, work)
			if err != nil {
				return fmt.Errorf("%s: %w", q.name, err)
			}
			took[i] = append(took[i], a)
		}
	}
	fmt.Printf("questions: %d runs and %d, each of %d records, %d KiB; all in the page cache\n", few, n, sum.Records+1, size>>10)
	return questionTable(os.Stdout, took[0], took[1], few, n)
}

// multiply makes links to the files of a run under other names until there are n runs.
func multiply(run string, n int) error {
	files, err := filepath.Glob(filepath.Join(run, "*"))
	if err != nil {
		return err
	}
	for i := 1; i < n; i++ {
		to := filepath.Join(filepath.Dir(run), fmt.Sprintf("20200101-000000-%06d", i))
		if err := os.Mkdir(to, 0o700); errors.Is(err, os.ErrExist) {
			continue
		} else if err != nil {
			return err
		}
		for _, f := range files {
			if st, err := os.Stat(f); err != nil || !st.Mode().IsRegular() {
				continue // code/
			}
			if err := os.Link(f, filepath.Join(to, filepath.Base(f))); err != nil {
				return err
			}
		}
	}
	return nil
}

// answer is what a question took.
type answer struct {
	wall, cpu time.Duration
	peak      int64 // bytes, resident
}

func (q *question) ask(agentguard, state, work string) (a answer, err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return a, err
	}
	defer null.Close()
	argv := append([]string{agentguard}, append(q.args, "--state", state)...)
	start := time.Now()
	p, err := os.StartProcess(argv[0], argv, &os.ProcAttr{Dir: work, Files: []*os.File{null, null, os.Stderr}})
	if err != nil {
		return a, err
	}
	st, err := p.Wait()
	if err != nil {
		return a, err
	}
	if st.ExitCode() != 0 && st.ExitCode() != 1 { // 1: a record that is not complete
		return a, fmt.Errorf("%v: %v", argv, st)
	}
	used := st.SysUsage().(*syscall.Rusage)
	return answer{time.Since(start), st.UserTime() + st.SystemTime(), used.Maxrss << 10}, nil
}

func questionTable(w io.Writer, a, b []answer, few, n int) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(out, "\t%d: ms\tMiB\t%d: ms\tMiB\tx\tus of CPU a run\t\n", few, n)
	for i, q := range questions {
		fmt.Fprintf(out, "%s\t%.0f\t%d\t%.0f\t%d\t%.1f\t%d\t\n", q.name, ms(a[i].wall), a[i].peak>>20, ms(b[i].wall), b[i].peak>>20,
			ratio(b[i].wall, a[i].wall), b[i].cpu.Microseconds()/int64(n))
	}
	return out.Flush()
}
