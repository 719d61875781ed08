package supervisor

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/changes"
	"github.com/agentguard/agentguard/internal/outer"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/trace"
)

// Staged is the change set of an ended run, with what was decided about it.
type Staged struct {
	*changes.Set
	dir     *os.File // changes/
	journal *os.File // locked
	run     *runs.RunDir
	caller  Caller

	Protect []string // what the run's policy protects
	Settled []bool   // by entry: committed or discarded
	Open    bool     // a commit was interrupted

	// Where what was staged can only be read: asks whoever may to commit the picked
	// entries, one bit an entry, lowest first, or with discard to throw them away.
	Ask func(picks []byte, discard, force bool) error
}

// OpenStaged opens the change set of a run. Its index must be the one that the
// result has the digest of. lock says that something will be decided: two who
// decide wait for each other, and the run is not deleted until d is closed.
func OpenStaged(d *runs.RunDir, c Caller, lock bool) (*Staged, error) {
	if lock && !d.Shown() {
		if err := d.Share(); err != nil {
			return nil, fmt.Errorf("run %s: %w", d.ID(), err)
		}
	}
	res, err := d.Result()
	if err != nil {
		return nil, &Refusal{What: "run " + d.ID() + " has no result, so its changes are not known", Err: err, Remedy: "wait until it has ended"}
	}
	if res.Changes == nil {
		return nil, &Refusal{What: "run " + d.ID() + " staged no changes"}
	}
	s := &Staged{run: d, caller: c, Protect: res.Changes.Protect}
	if s.dir, err = d.OpenDir(runs.ChangesDir); err != nil {
		return nil, err
	}
	if err := s.open(res.Changes.SHA256, lock); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Staged) open(digest string, lock bool) error {
	var err error
	if got, err := indexDigest(s.dir); err != nil || got != digest {
		return &Refusal{What: "the change set of run " + s.run.ID() + " is not the one that was recorded", Err: err, Remedy: "nothing was read from it; see agentguard trace verify"}
	}
	if s.Set, err = changes.Open(s.dir); err != nil {
		return err
	}
	if s.journal, err = s.run.OpenAppend(runs.CommitFile); err != nil {
		return err
	}
	if lock && !s.run.Shown() {
		if err := unix.Flock(int(s.journal.Fd()), unix.LOCK_EX); err != nil {
			return os.NewSyscallError("flock", err)
		}
	}
	s.Settled, s.Open, err = s.Set.Settled(s.journal)
	return err
}

func indexDigest(dir *os.File) (string, error) {
	fd, err := unix.Openat(int(dir.Fd()), changes.IndexFile, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", os.NewSyscallError("openat", err)
	}
	f := os.NewFile(uintptr(fd), changes.IndexFile)
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), err
}

// Close releases the set and its lock.
func (s *Staged) Close() error {
	var errs []error
	if s.Set != nil {
		errs = append(errs, s.Set.Close())
	}
	for _, f := range []*os.File{s.dir, s.journal} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// below reports whether a changed entry lies at or below one of the paths.
func (s *Staged) below(e *changes.Entry, paths []string, hit []bool) bool {
	if e.Op() == changes.None {
		return false
	}
	root := string(s.RootOf(e).Name)
	found := false
	for i, p := range paths {
		if within(path.Join(root, s.Path(e)), p) || within(path.Join(root, s.OldPath(e)), p) {
			hit[i], found = true, true
		}
	}
	return found
}

// Pending reports whether one of the trees is the directory root, and whether
// something about it is not decided yet.
func (s *Staged) Pending(root string) (of, pending bool) {
	for i := range s.Entries {
		e := &s.Entries[i]
		if string(s.RootOf(e).Name) != root {
			continue
		}
		of = true
		pending = pending || !s.Settled[i] && e.Op() != changes.None
	}
	return of, pending
}

// Has reports whether a change lies at or below a host path.
func (s *Staged) Has(p string) bool {
	for i := range s.Entries {
		if s.below(&s.Entries[i], []string{p}, make([]bool, 1)) {
			return true
		}
	}
	return false
}

// Discard marks entries as thrown away; the record keeps them.
func (s *Staged) Discard(picks []bool) error {
	if s.Ask != nil {
		return s.Ask(bits(picks), true, false)
	}
	return changes.Drop(s.journal, picks)
}

// Picked are the entries of bits such as Ask gets; what is beyond the entries is nothing.
func (s *Staged) Picked(bits []byte) []bool { return unbits(bits, len(s.Entries)) }

// Commit applies the picked entries to the host, tree by tree.
func (s *Staged) Commit(picks []bool, force bool) error {
	if s.Ask != nil {
		return s.Ask(bits(picks), false, force)
	}
	if (!s.Ended || len(s.Findings) > 0) && !force {
		why := "agentguard was killed while it was packed"
		if len(s.Findings) > 0 {
			why = strings.Join(s.Findings, "; ")
		}
		return &Refusal{What: "the change set is not complete: " + trace.Quote(why), Remedy: "look at it with agentguard diff, and commit what there is with --force"}
	}
	var roots []*changes.Entry
	for i := range s.Entries {
		if e := &s.Entries[i]; e.Root() {
			roots = append(roots, e)
		}
	}
	for _, check := range []bool{true, false} { // a conflict in one tree keeps all as they are
		for _, e := range roots {
			if check && len(roots) == 1 {
				continue // committing begins with the same
			}
			if err := s.commitTree(e, commitRequest{Check: check, Force: force, Picks: bits(picks)}); err != nil {
				return err
			}
		}
	}
	return nil
}

// OpenTree opens the host's directory of a tree with the caller's ids.
func (s *Staged) OpenTree(root string) (*os.File, error) {
	var top Opened
	err := s.caller.As(func() (err error) { top, err = openPath(root); return err })
	return top.File, err
}

func (s *Staged) commitTree(root *changes.Entry, req commitRequest) error {
	name := string(root.Name)
	if s.caller.UID != 0 && int(root.UID) != s.caller.UID {
		return &Refusal{What: fmt.Sprintf("the changes of %s are user %d's", trace.Quote(name), root.UID), Remedy: "root can commit them"}
	}
	var top Opened
	err := s.caller.As(func() (err error) { top, err = openPath(name); return err })
	if err != nil {
		return &Refusal{What: "cannot commit to " + trace.Quote(name), Err: err}
	}
	defer top.File.Close()
	if (top.Stat.Dev != root.Old.Dev || top.Stat.Ino != root.Old.Ino) && !req.Force {
		return &Refusal{What: trace.Quote(name) + " is another directory than the one that the run saw", Remedy: "commit to it all the same with --force"}
	}
	req.ID, req.Root, req.UID, req.GID = s.run.ID(), root.N, int(root.UID), int(root.GID)
	req.Groups = s.caller.groupsOf(req.UID)
	return s.child(root, &req, top.File)
}

// commitRequest is what the committing process reads from its stdin.
type commitRequest struct {
	ID     string `json:"id"`
	Root   int    `json:"root"`
	UID    int    `json:"uid"`
	GID    int    `json:"gid"`
	Groups []int  `json:"groups,omitempty"` // a file in a set-group-id directory is its group's
	Force  bool   `json:"force"`
	Check  bool   `json:"check"` // compare only
	Picks  []byte `json:"picks"` // one bit an entry, lowest first

	Outside bool `json:"outside,omitempty"` // descriptor 6 is that of internal/outer
}

// commitReply is what it writes to its stdout.
type commitReply struct {
	Error     string             `json:"error,omitempty"`
	Conflicts []changes.Conflict `json:"conflicts,omitempty"`
}

// CommitCommand is the name by which agentguard starts itself as the committing
// process. Its descriptors: 3 changes/, 4 the journal, 5 the tree's top directory, 6 what
// internal/outer asks, if anything.
const CommitCommand = "commit-apply"

// child commits one tree in a process that has the owner's ids and nothing else.
func (s *Staged) child(root *changes.Entry, req *commitRequest, top *os.File) error {
	cmd := exec.CommandContext(context.Background(), "/proc/self/exe", CommitCommand)
	cmd.Env, _ = commitFault()
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{s.dir, s.journal, top}
	outside, err := outer.Lend()
	if err != nil {
		return err
	}
	if outside != nil {
		defer outside.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, outside)
	}
	req.Outside = outside != nil
	in, err := json.Marshal(req)
	if err != nil {
		return err
	}
	cmd.Stdin = bytes.NewReader(in)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("the committing process: %w: %s", err, trace.Quote(errs.String()))
	}
	var reply commitReply
	if err := json.Unmarshal(out.Bytes(), &reply); err != nil {
		return fmt.Errorf("the committing process: %w", err)
	}
	switch {
	case len(reply.Conflicts) > 0:
		return &changes.ConflictError{Conflicts: reply.Conflicts}
	case reply.Error != "":
		return &Refusal{What: "commit to " + trace.Quote(root.Name) + ": " + reply.Error, Remedy: "the change set is intact; when the cause is gone, commit again: it goes on where it stopped"}
	}
	return nil
}

func bits(picks []bool) []byte {
	out := make([]byte, (len(picks)+7)/8)
	for i, on := range picks {
		if on {
			out[i/8] |= 1 << (i % 8)
		}
	}
	return out
}

func unbits(b []byte, n int) []bool {
	out := make([]bool, n)
	for i := range out {
		out[i] = i/8 < len(b) && b[i/8]&(1<<(i%8)) != 0
	}
	return out
}
