package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/changes"
	"github.com/agentguard/agentguard/internal/lockdown"
	"github.com/agentguard/agentguard/internal/outer"
	"github.com/agentguard/agentguard/landlock"
)

// CommitChild is the committing process: it becomes the owner of the tree, with
// no right that the owner has not, is confined to the tree, and only then reads
// what the run left. See CommitCommand for its descriptors.
func CommitChild(in io.Reader, out io.Writer) error {
	var req commitRequest
	if err := json.NewDecoder(in).Decode(&req); err != nil {
		return err
	}
	dir, journal, path := os.NewFile(3, "changes"), os.NewFile(4, "journal"), os.NewFile(5, "tree")
	if req.Outside {
		if err := outer.Use(os.NewFile(6, "outside"), 0); err != nil {
			return err
		}
	}
	if err := becomeOwner(&req, dir, path); err != nil {
		return err
	}
	reply := commitReply{}
	err := applyCommit(&req, dir, journal, path)
	var conflict *changes.ConflictError
	switch {
	case errors.As(err, &conflict):
		reply.Conflicts = conflict.Conflicts
	case err != nil:
		reply.Error = err.Error()
	}
	return json.NewEncoder(out).Encode(&reply)
}

func applyCommit(req *commitRequest, dir, journal, path *os.File) error {
	top, err := unix.Openat(int(path.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("the top directory: %w", err)
	}
	f := os.NewFile(uintptr(top), "tree")
	defer f.Close()
	set, err := changes.Open(dir)
	if err != nil {
		return err
	}
	defer set.Close()
	if req.Root < 1 || req.Root > len(set.Entries) || !set.Entries[req.Root-1].Root() {
		return fmt.Errorf("entry %d is no tree", req.Root)
	}
	root, picks := &set.Entries[req.Root-1], unbits(req.Picks, len(set.Entries))
	_, step := commitFault()
	o := changes.Options{ID: req.ID, Force: req.Force, Journal: journal, Step: step}
	if req.Check {
		return set.Check(f, root, picks, o)
	}
	return set.Commit(f, root, picks, o)
}

// becomeOwner gives up root for good, on every thread. The owner root keeps one
// capability: to give a file back to the user that it belonged to.
func becomeOwner(req *commitRequest, dir, tree *os.File) error {
	uid, gid := req.UID, req.GID
	unix.Umask(0)
	ruleset, err := commitRuleset(dir, tree)
	if err != nil {
		return err
	}
	if HostRoot() { // else they are ours, and nobody else's would be to be had
		if err := errors.Join(syscall.Setgroups(req.Groups), syscall.Setresgid(gid, gid, gid), syscall.Setresuid(uid, uid, uid)); err != nil {
			return fmt.Errorf("ids of user %d: %w", uid, err)
		}
	}
	if os.Geteuid() != uid {
		return fmt.Errorf("user %d cannot commit as user %d", os.Geteuid(), uid)
	}
	var keep lockdown.Set
	if uid == 0 {
		keep = lockdown.Of(unix.CAP_CHOWN)
	}
	if err := lockdown.Use(keep, keep); err != nil {
		return err
	}
	if err := lockdown.OnAllThreads(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	if ruleset == nil {
		return nil
	}
	defer ruleset.Close()
	if err := lockdown.OnAllThreads(landlock.SysRestrictSelf, ruleset.Fd(), 0, 0); err != nil {
		return fmt.Errorf("landlock_restrict_self: %w", err)
	}
	return nil
}

// commitRuleset confines the committer to the tree and the change set; nil
// where the host has no Landlock.
func commitRuleset(dir, tree *os.File) (*os.File, error) {
	abi, err := landlock.ABI()
	if err != nil {
		return nil, nil // the owner's ids are the one layer then
	}
	return landlock.NewRuleset(abi, []landlock.Grant{
		{FD: int(dir.Fd()), Kind: landlock.Plain, Dir: true, Name: "the change set"},
		{FD: int(tree.Fd()), Kind: landlock.Write, Dir: true, Name: "the tree"},
	})
}
