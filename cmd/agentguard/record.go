package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentguard/agentguard/trace"
)

// record is one record that is open for reading: of a run of this host, or a
// file or a run's directory that was copied from another.
type record struct {
	*os.File
	id   string
	size int64
	live func() bool // whether a supervisor still writes it
	dir  io.Closer   // what live looks at; nil: nothing

	vouch   func() (trace.Judgement, []string) // holds it against its seal; nil: nobody can
	missing func() []string                    // programs that the run did not find, from its result; nil: it is not there
}

// Vouch says of a run of this host whether it is as it was sealed.
func (r *record) Vouch() (trace.Judgement, []string) {
	if r.vouch == nil || r.live() {
		return "", nil
	}
	return r.vouch()
}

// Close closes the record and what came with it.
func (r *record) Close() error {
	err := r.File.Close()
	if r.dir != nil {
		err = errors.Join(err, r.dir.Close())
	}
	return err
}

// recordArgs says what the commands that read records take.
const recordArgs = `A run is named by its id or the beginning of it, by the end of its id, or by "last",
which is also what is meant when nothing is named. A name with a slash in it is a
file: the record itself, or a run's directory that was copied from elsewhere.`

// traceFile is the record in a run's directory.
const traceFile = "trace.jsonl"

// openRecord opens what a command line names.
func openRecord(state, name string) (*record, error) {
	if !strings.ContainsRune(name, filepath.Separator) {
		return openRunRecord(state, name)
	}
	f, err := openAsCaller(name)
	if err != nil {
		return nil, fmt.Errorf("the record cannot be read: %w", err)
	}
	if st, err := f.Stat(); err == nil && st.IsDir() {
		f.Close()
		return openRecord(state, filepath.Join(name, traceFile))
	}
	return newRecord(f, trace.Quote(name))
}

// newRecord takes over f.
func newRecord(f *os.File, id string) (*record, error) {
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a file", trace.Quote(f.Name()))
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &record{File: f, id: id, size: st.Size(), live: func() bool { return false }}, nil
}

// one opens the record that the arguments name, "last" when they name none, and
// hands it to a view that judges it. A record that is not complete is exit
// status 1.
func one(state string, args []string, view func(*record) (trace.Judgement, error)) error {
	name := "last"
	if len(args) > 0 {
		name = args[0]
	}
	r, err := openRecord(state, name)
	if err != nil {
		return err
	}
	defer r.Close()
	j, err := view(r)
	if err == nil && j != trace.Complete {
		err = status(1)
	}
	return err
}

// ofUser begins what stands in the place of a state directory for the records of a user: no
// path holds it.
const ofUser = "\x00"

// auditedFlags adds --state and --user to a command that only reads records.
func auditedFlags(c *cobra.Command) *string {
	state := stateFlag(c)
	c.Flags().Func("user", "those of user `NAME` or number, for root and the audit group", func(name string) error {
		if *state = ofUser + name; name == "" {
			return errors.New("it is empty")
		}
		return nil
	})
	c.MarkFlagsMutuallyExclusive("state", "user")
	return state
}

// stateFlag adds --state to a command that reads records.
func stateFlag(c *cobra.Command) *string {
	return c.Flags().String("state", "", "`DIR` of the records (default /var/lib/agentguard; without root and the helper ~/.local/state/agentguard)")
}
