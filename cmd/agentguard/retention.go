//go:build linux

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/supervisor"
)

// withState opens the state directory for one command that changes what is in it.
func withState(state string, do func(supervisor.Caller, *runs.State) error) error {
	if state == "" && chooseMode(false) == byHelper {
		return &supervisor.Refusal{
			What:   "records of the helper's runs are root's, and shown read-only",
			Remedy: fmt.Sprintf("root deletes and recovers them, with --state /var/lib/agentguard/users/%d; --state DIR names records of your own", os.Getuid()),
		}
	}
	who, err := caller()
	if err != nil {
		return err
	}
	s, err := openState(state)
	if err != nil {
		return err
	}
	defer s.Close()
	return do(who, s)
}

// allUsersFlag adds --all-users to a command of the administrator's.
func allUsersFlag(c *cobra.Command) *bool {
	return c.Flags().Bool("all-users", false, "root's own runs, and those of every user who ran agentguard under sudo")
}

// withStates opens one state directory after another: the one that is meant, or
// with all root's and those of all users, which lie below it.
func withStates(state string, all bool, do func(supervisor.Caller, *runs.State) error) error {
	if !all {
		return withState(state, do)
	}
	who, err := caller()
	if err == nil && (who.UID != 0 || who.Sudo) {
		err = &supervisor.Refusal{What: "--all-users is root's", Remedy: "call as root itself, not by sudo"}
	}
	if err == nil && state != "" {
		err = errors.New("--all-users takes the directories of all users: leave --state out")
	}
	if err != nil {
		return err
	}
	top, err := who.StateDir("")
	if err != nil {
		return err
	}
	users, err := os.ReadDir(filepath.Join(top, "users"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	errs := []error{withState(top, do)}
	for _, u := range users {
		errs = append(errs, withState(filepath.Join(top, "users", u.Name()), do))
	}
	return errors.Join(errs...)
}

// eachGiven finds the runs that arguments name and hands each to do.
func eachGiven(s *runs.State, names []string, do func(id string) error) error {
	var errs []error
	for _, name := range names {
		id, err := s.Find(name)
		if errors.Is(err, fs.ErrNotExist) {
			err = noRun(name, s.Path())
		}
		if err == nil {
			err = do(id)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// doneRun is what --json says of one run that something was done with.
type doneRun struct {
	ID    string `json:"id"`
	Done  string `json:"done"`            // deleted, "would be deleted", recovered, ended; "" when it was not
	Error string `json:"error,omitempty"` // why not
}

// doneFlag adds --json to a command that does something with runs.
func doneFlag(c *cobra.Command) *bool {
	return c.Flags().Bool("json", false, "one JSON object a line: id, done, error")
}

// tellDone says what was done with a run, as JSON if that is asked for, and hands
// an error on.
func tellDone(asJSON bool, id, done string, err error) error {
	if !asJSON {
		return err
	}
	r := doneRun{ID: id, Done: done}
	if err != nil {
		r.Done, r.Error = "", err.Error()
	}
	return errors.Join(err, jsonLine(r))
}

func newRunsRm() *cobra.Command {
	c := &cobra.Command{
		Use: "rm ID...", Short: "Delete ended runs; the host's log keeps that they were there", Args: cobra.MinimumNArgs(1), Example: "  agentguard runs rm 20261129-1636",
		Long: "rm deletes the record and the result of each run. The host's log says who deleted it and when,\nso that trace verify --all does not miss it.",
	}
	state, asJSON := stateFlag(c), doneFlag(c)
	c.RunE = func(_ *cobra.Command, args []string) error {
		return withState(*state, func(who supervisor.Caller, s *runs.State) error {
			return eachGiven(s, args, func(id string) error {
				return tellDone(*asJSON, id, "deleted", supervisor.Forget(who, s, id, "runs rm"))
			})
		})
	}
	return c
}

func newRunsPrune() *cobra.Command {
	c := &cobra.Command{
		Use: "prune", Short: "Delete ended runs by age or number", Args: cobra.NoArgs,
		Long:    "prune deletes ended runs that are older than a time, or that are not among the newest ones, and\nprints their ids. With both limits a run goes when either says so. Live runs stay.",
		Example: "  agentguard runs prune --older-than 720h\n  agentguard runs prune --keep 1000 --dry-run\n  agentguard runs prune --older-than 2160h --all-users",
	}
	state, all := stateFlag(c), allUsersFlag(c)
	age := c.Flags().Duration("older-than", 0, "delete runs that began longer than `DUR` ago")
	keep := c.Flags().Int("keep", -1, "keep the newest `N` runs only")
	dry := c.Flags().Bool("dry-run", false, "print what would be deleted, and delete nothing")
	asJSON := doneFlag(c)
	c.RunE = func(*cobra.Command, []string) error {
		if *age <= 0 && *keep < 0 {
			return &supervisor.Refusal{What: "nothing says which runs to delete", Remedy: "give --older-than or --keep"}
		}
		return withStates(*state, *all, func(who supervisor.Caller, s *runs.State) error {
			ids, err := s.IDs()
			if err != nil {
				return err
			}
			done, forget := "deleted", func(id string) error { return supervisor.Forget(who, s, id, "runs prune") }
			if *dry {
				done, forget = "would be deleted", func(string) error { return nil }
			}
			return prune(ids, *age, *keep, forget, func(id string, err error) error {
				if err == nil && !*asJSON {
					fmt.Println(id)
				}
				return tellDone(*asJSON, id, done, err)
			})
		})
	}
	return c
}

// prune hands the ids, newest first, that are too old or too many to forget, and
// what came of each to tell. What has a name that tells no time is nobody's run, and stays.
func prune(ids []string, age time.Duration, keep int, forget func(id string) error, tell func(id string, err error) error) error {
	var errs []error
	ids = slices.DeleteFunc(ids, func(id string) bool { return runs.Began(id).IsZero() })
	for i, id := range ids {
		old := age > 0 && runs.Began(id).Before(time.Now().Add(-age))
		if !old && (keep < 0 || i < keep) {
			continue
		}
		err := forget(id)
		if errors.Is(err, runs.ErrLive) || errors.Is(err, fs.ErrNotExist) { // it stays, or was removed meanwhile
			continue
		}
		errs = append(errs, tell(id, err))
	}
	return errors.Join(errs...)
}

func newRunsRecover() *cobra.Command {
	c := &cobra.Command{
		Use: "recover [ID...]", Short: "Finish the records of runs whose supervisor was killed", Example: "  agentguard runs recover\n  agentguard runs recover --all-users",
		Long: "recover ends the record of each run that nobody supervises any more and that has no seal (all of\n" +
			"them, when none is named): a summary says that agentguard was killed, and the host seals what is there as\n" +
			"recovered, which is never complete. A record that does not match its own checkpoints is left as it is.\n" +
			"The next run does the same for small records that it finds.",
	}
	state, all, asJSON := stateFlag(c), allUsersFlag(c), doneFlag(c)
	c.RunE = func(_ *cobra.Command, args []string) error {
		if *all && len(args) > 0 {
			return errors.New("--all-users recovers all there are: name none")
		}
		return withStates(*state, *all, func(who supervisor.Caller, s *runs.State) error {
			one := func(id string) error {
				err := supervisor.Recover(who, s, id)
				if err != nil {
					err = fmt.Errorf("run %s: %w", id, err)
				}
				switch {
				case *asJSON && (len(args) > 0 || !notRecovered(err)):
					return tellDone(true, id, "recovered", err)
				case err == nil:
					fmt.Println(id)
				}
				return err
			}
			if len(args) > 0 {
				return eachGiven(s, args, one)
			}
			return recoverAll(s, one)
		})
	}
	return c
}

// recoverAll recovers every run that is neither live nor sealed.
func recoverAll(s *runs.State, one func(id string) error) error {
	ids, err := s.IDs()
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range ids {
		if err := one(id); !notRecovered(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// notRecovered is true of a run that there is nothing to do for.
func notRecovered(err error) bool {
	return errors.Is(err, runs.ErrLive) || errors.Is(err, supervisor.ErrSealed)
}

func newRunsSweep() *cobra.Command {
	return &cobra.Command{
		Use: "sweep", Short: "Let go of what is kept on this host between runs", Args: cobra.NoArgs, Example: "  agentguard runs sweep",
		Long: "sweep removes what dead supervisors left, and what is kept so that the next run starts faster: pinned\n" +
			"programs, the cgroup of all runs, user namespaces, digests of system files. Records stay. It is for\n" +
			"before an uninstallation; the next run makes it all again.\n\nExit status: 0 done; 125 not, for example because a run is live.",
		RunE: func(*cobra.Command, []string) error { return supervisor.Release() },
	}
}
