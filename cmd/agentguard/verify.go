package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentguard/agentguard/trace"
	"github.com/agentguard/agentguard/trace/seal"
)

// sealedRun is a run to be verified: one of this host, or a copy.
type sealedRun struct {
	id      string // as it was named
	dir     fs.FS
	keys    seal.Keys
	anchors *seal.Anchors
	check   func(*seal.Report) // against the host's log; nil for a copy
	live    func() bool        // nil: no
	close   func() error
}

// Exit statuses of verify.
var verdictStatus = map[trace.Judgement]status{trace.Complete: 0, trace.Degraded: 1, trace.Incomplete: 1, trace.Unsealed: 2, trace.Altered: 3}

const verifyHelp = `verify reads all of a run, hashes it again, and holds it against the seal, the
checkpoints and, for a run of this host, the host's log. It says where the record differs:
line, byte offset, and number of the record as it was sealed.

A run is named by its id or "last". A name with a slash in it is a file: a run's directory or
a file in it, copied from anywhere, or a proof that was made by trace prove. For these the
public key of the host that made the run is needed (agentguard keys show), unless it is this one.

Exit status: 0 complete and as it was sealed; 1 as it was sealed, but incomplete or degraded; 2 unsealed,
and as far as checkpoints reach not altered; 3 altered, or by a key that is not trusted, or gone;
125 it could not be checked. --all ends with the greatest of all
runs that have ended.`

func newTraceVerify() *cobra.Command {
	c := &cobra.Command{
		Use: "verify [ID|last|DIR|FILE]", Short: "Check that a record is as it was sealed, and say where it is not", Args: cobra.MaximumNArgs(1), Long: verifyHelp,
		Example: "  agentguard trace verify last\n  agentguard trace verify --all\n  agentguard trace verify --key host.pub ./copied-run/",
	}
	state := auditedFlags(c)
	key := c.Flags().String("key", "", "trust this public `KEY`, or those in the file of that name, and no other")
	anchored := c.Flags().String("anchors", "", "hold the run against the anchored lines in `FILE` too (see seal.yaml)")
	all := c.Flags().Bool("all", false, "verify all runs of this host, or of a copied state directory, and that none is gone")
	asJSON := c.Flags().Bool("json", false, "one report a line, as JSON")
	c.RunE = func(_ *cobra.Command, args []string) error {
		keys, err := keysFlag(*key)
		if err != nil {
			return err
		}
		anchors, err := anchorsFlag(*anchored)
		if err != nil {
			return err
		}
		if *all {
			c, err := allRuns(*state, args, keys)
			if err != nil {
				return err
			}
			defer c.close()
			return c.verifyAll(anchors, *asJSON)
		}
		name := "last"
		if len(args) > 0 {
			name = args[0]
		}
		if isPath(name) {
			b, ok, err := readProof(name)
			if err != nil {
				return fmt.Errorf("the record or proof cannot be read: %w", err)
			}
			if ok {
				return verifyProof(b, *state, keys, *asJSON)
			}
		}
		r, err := openSealed(*state, name, keys)
		if err != nil {
			return err
		}
		defer r.close()
		r.anchors = anchors
		return r.verify(*asJSON)
	}
	return c
}

func isPath(name string) bool { return strings.ContainsAny(name, "/"+string(filepath.Separator)) }

// keysFlag reads --key: a public key, or a file of them. Without it there are none.
func keysFlag(v string) (seal.Keys, error) {
	if v == "" {
		return nil, nil
	}
	if !strings.Contains(v, "+") {
		f, err := openAsCaller(v)
		if err != nil {
			return nil, fmt.Errorf("--key: %w", err)
		}
		defer f.Close()
		b, err := io.ReadAll(io.LimitReader(f, 1<<20))
		if err != nil {
			return nil, fmt.Errorf("--key: %w", err)
		}
		v = string(b)
	}
	keys, err := seal.ParseKeys(v)
	if err == nil && len(keys) == 0 {
		err = errors.New("no public key in it")
	}
	if err != nil {
		return nil, fmt.Errorf("--key: %w", err)
	}
	return keys, nil
}

// anchorsFlag reads --anchors. Without it there are none.
func anchorsFlag(name string) (*seal.Anchors, error) {
	if name == "" {
		return nil, nil
	}
	f, err := openAsCaller(name)
	if err != nil {
		return nil, fmt.Errorf("--anchors: %w", err)
	}
	defer f.Close()
	return seal.ReadAnchors(f)
}

var errNoKey = errors.New("no public key to check it with: give the one of the host that made it with --key (agentguard keys show, there)")

// copied is a run's directory anywhere, read as the caller.
type copied string

// Open implements fs.FS.
func (c copied) Open(name string) (fs.File, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	f, err := openAsCaller(filepath.Join(string(c), filepath.FromSlash(name)))
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%s is not a file", trace.Quote(f.Name())), err, f.Close())
	}
	return f, nil
}

// openCopy takes a directory, or a file in one.
func openCopy(name string, keys seal.Keys) (*sealedRun, error) {
	f, err := openAsCaller(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.IsDir() {
		name = filepath.Dir(name)
	}
	if len(keys) == 0 {
		return nil, errNoKey
	}
	return &sealedRun{id: trace.Quote(name), dir: copied(name), keys: keys, close: func() error { return nil }}, nil
}

func (r *sealedRun) report() (*seal.Report, error) {
	rep, err := seal.Verify(r.dir, r.keys, r.anchors)
	if err != nil {
		return nil, fmt.Errorf("run %s cannot be checked: %w", r.id, err)
	}
	if r.check != nil {
		r.check(rep)
	}
	return rep, nil
}

func (r *sealedRun) verify(asJSON bool) error {
	rep, err := r.report()
	if err != nil {
		return err
	}
	if asJSON {
		err = printReport(rep)
	} else {
		err = tellReport(r.id, rep)
	}
	if s := verdictStatus[rep.Verdict]; err == nil && s != 0 {
		return s
	}
	return err
}

func printReport(rep *seal.Report) error {
	return jsonLine(rep)
}

// tellReport prints a report for people: the word, what it rests on, what is wrong.
func tellReport(id string, rep *seal.Report) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", rep.Verdict, id)
	row := func(name, format string, a ...any) {
		fmt.Fprintf(&b, "  %-9s "+format+"\n", append([]any{name}, a...)...)
	}
	for _, f := range rep.Faults {
		row("fault", "%s", f)
	}
	row("records", "%d, of which the first %d (%d bytes) are as they were signed", rep.Records, rep.Verified, rep.Bytes)
	if rep.Anchored > 0 {
		row("anchored", "%d notes that were kept elsewhere match", rep.Anchored)
	}
	if rep.SignBy != "" {
		row("key", "%s", trace.Line(rep.SignBy))
	}
	if !rep.Until.IsZero() {
		row("until", "%s, the last checkpoint", rep.Until.UTC().Format("2006-01-02 15:04:05.000 UTC"))
	}
	if s := rep.Statement; s != nil {
		p := &s.Predicate
		row("root", "%s over %d blocks, %d checkpoints", trace.Line(p.Tree.Root), p.Tree.Blocks, rep.Checkpoints)
		row("sealed", "%s, %s, durable %v, by agentguard %s", trace.Line(p.State), trace.Line(p.Ended), p.Durable, trace.Line(p.Tool))
		row("run", "status %d, %s", p.Status, trace.Line(p.Reason))
		row("files", "%d", len(s.Subject))
	}
	for _, w := range rep.Why {
		row("why", "%s", trace.Line(w))
	}
	_, err := os.Stdout.WriteString(b.String())
	return err
}

// readProof reads a file, if it is a proof.
func readProof(name string) (b []byte, ok bool, err error) {
	f, err := openAsCaller(name)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, false, err
	}
	b, err = io.ReadAll(io.LimitReader(f, seal.MaxProof))
	return b, err == nil && seal.IsProof(b), err
}

func verifyProof(b []byte, state string, keys seal.Keys, asJSON bool) error {
	if len(keys) == 0 {
		var err error
		if keys, err = ownKeys(state); err != nil {
			return err
		}
	}
	p, c, err := seal.OpenProof(b, keys)
	if err != nil {
		text := "the proof does not hold: " + trace.Line(err.Error())
		if asJSON {
			return errors.Join(printReport(&seal.Report{Verdict: trace.Altered, Faults: []seal.Fault{{Text: text}}}), verdictStatus[trace.Altered])
		}
		fmt.Printf("%s: %s\n", trace.Altered, text)
		return verdictStatus[trace.Altered]
	}
	if asJSON {
		fmt.Println(trace.Line(p.Line)) // the host signs what it finds when it recovers a record
		return nil
	}
	fmt.Printf("proved: run %s, of %d records on %s\n%s\n", trace.Line(p.Run), c.Records, c.Time.UTC().Format("2006-01-02 15:04:05.000 UTC"), trace.Line(p.Line))
	return nil
}

func newTraceProve() *cobra.Command {
	c := &cobra.Command{
		Use: "prove SEQ [ID|last|DIR]", Short: "Print a proof that one record is in a run, without the others", Args: cobra.RangeArgs(1, 2),
		Long: "prove prints the record with the sequence number SEQ, the digests of the records beside it, its\n" +
			"path in the tree, the signed root and the certificate of the key: one JSON object that trace verify\nchecks anywhere with the host's public key. Nothing else of the run is told.",
		Example: "  agentguard trace prove 17 last >proof.json\n  agentguard trace verify --key host.pub ./proof.json",
	}
	state := auditedFlags(c)
	key := c.Flags().String("key", "", "trust this public `KEY`, or those in the file of that name, and no other")
	c.RunE = func(_ *cobra.Command, args []string) error {
		seq, err := strconv.ParseUint(args[0], 10, 64)
		if err != nil {
			return fmt.Errorf("%s is not a sequence number", trace.Quote(args[0]))
		}
		keys, err := keysFlag(*key)
		if err != nil {
			return err
		}
		name := "last"
		if len(args) > 1 {
			name = args[1]
		}
		r, err := openSealed(*state, name, keys)
		if err != nil {
			return err
		}
		defer r.close()
		p, err := seal.Prove(r.dir, r.keys, seq)
		if err != nil {
			return fmt.Errorf("run %s: %w", r.id, err)
		}
		b, err := p.JSON()
		if err == nil {
			_, err = os.Stdout.Write(b)
		}
		return err
	}
	return c
}
