//go:build linux

package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/policy"
	"github.com/agentguard/agentguard/supervisor"
)

// policy merges defaults, the administrator's file, the named files and the
// flags, and bounds the result by the ceiling.
func (f *execFlags) policy() (*policy.Policy, error) {
	cwd, err := os.Getwd()
	if err != nil {
		return nil, &supervisor.Refusal{What: "the current directory is gone", Err: err, Remedy: "cd somewhere that is there"}
	}
	f.cwd, f.mode = cwd, chooseMode(f.withoutHelper)
	f.interactive = isTerminal(os.Stdin) && isTerminal(os.Stdout)
	if f.asked, err = f.readAsked(); err != nil {
		return nil, err
	}
	p, err := f.merged()
	if err != nil {
		return nil, err
	}
	if err := bound(p, f.mode); err != nil {
		return nil, err
	}
	if err := f.beside(p); err != nil {
		return nil, err
	}
	p.StageLimited()
	return p, nil
}

// beside holds flags that are no clauses to the ceiling's words for what they do.
func (f *execFlags) beside(p *policy.Policy) error {
	var errs []error
	if f.cont != "" {
		errs = append(errs, p.Allows("filesystem.persistence", "keep", policy.Source{Flag: "--continue"}))
	}
	for _, name := range f.collect { // before anything runs
		_, err := absolute(name)
		errs = append(errs, err)
	}
	if len(f.collect) > 0 {
		errs = append(errs, p.Allows("filesystem.commit", "success", policy.Source{Flag: "--collect"}))
	}
	return errors.Join(errs...)
}

// readAsked reads what the command line asks for: profiles, files and flags.
func (f *execFlags) readAsked() ([]*policy.File, error) {
	fragments, err := readProfiles(f.profiles)
	if err != nil {
		return nil, err
	}
	named, badFiles := readPolicies(f.policies)
	fromFlags, badFlags := policy.FromFlags(f.flags)
	if err := errors.Join(badFiles, badFlags); err != nil {
		return nil, err
	}
	return append(append(fragments, named...), fromFlags), nil
}

// merged are the defaults and the administrator's file, and then what is asked for.
func (f *execFlags) merged() (*policy.Policy, error) {
	files := []*policy.File{policy.Defaults(policy.Context{MemTotal: supervisor.MemTotal(), Cwd: f.cwd, Interactive: f.interactive})}
	if err := rootOwned(systemPolicy); err != nil {
		return nil, err
	}
	sys, err := policy.ReadFile(systemPolicy)
	if err == nil {
		files = append(files, sys)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return policy.Merge(append(files, f.asked...)...)
}

// rootOwned refuses a file of the administrator's that somebody else can write, or take away: what runs of
// root's and of the helper's may do would be theirs to say. Runs without root are their user's affair.
func rootOwned(path string) error {
	if !supervisor.HostRoot() {
		return nil
	}
	for _, one := range []struct{ path, what string }{{filepath.Dir(path), "directory"}, {path, "file"}} {
		var st unix.Stat_t
		if unix.Stat(one.path, &st) != nil { // whoever reads it says what is wrong
			continue
		}
		if st.Uid != 0 || st.Mode&0o022 != 0 {
			return &supervisor.Refusal{What: one.path + " must be a " + one.what + " of root's that nobody else can write", Remedy: "chown root and chmod go-w " + one.path}
		}
	}
	return nil
}

// readPolicies reads files as the caller: what the caller cannot read is not
// quoted in errors either. The error is of all files that could not be read.
func readPolicies(names []string) (files []*policy.File, err error) {
	c, err := caller()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, name := range names {
		errs = append(errs, c.As(func() error {
			file, err := policy.ReadFile(name)
			if err == nil {
				files = append(files, file)
			}
			return err
		}))
	}
	return files, errors.Join(errs...)
}

// caller is whose authority bounds what this process opens by name.
func caller() (supervisor.Caller, error) { return supervisor.CurrentCaller(os.Getenv) }

// bound applies the ceilings to every caller but a real root login. The helper
// applies them again: then those that this process may not read are left to it.
func bound(p *policy.Policy, m mode) error {
	who, err := caller()
	if err != nil {
		return err
	}
	if who.UID == 0 && !who.Sudo {
		return nil
	}
	err = boundFor(p, who)
	if m == byHelper && errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}

// boundFor applies every ceiling that a caller stands under.
func boundFor(p *policy.Policy, who supervisor.Caller) error {
	for _, path := range policy.CeilingsOf(who.UID, append([]int{who.GID}, who.Groups...)) {
		if err := rootOwned(path); err != nil {
			return err
		}
		c, err := policy.ReadCeiling(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = p.Bound(c)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
