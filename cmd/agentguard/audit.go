//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/agentguard/agentguard/internal/helper"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/supervisor"
	"github.com/agentguard/agentguard/trace"
)

// openOf opens the records of a user for root, which needs nobody's leave.
func openOf(c supervisor.Caller, name string) (*runs.State, error) {
	if c.UID != 0 || c.Sudo {
		return nil, &supervisor.Refusal{What: "--user takes root, or the audit group and the helper", Remedy: "agentguard.socket, and gpasswd -a USER agentguard-audit"}
	}
	uid, err := userNumber(name)
	if err != nil {
		return nil, &supervisor.Refusal{What: "--user " + trace.Quote(name), Err: err}
	}
	path, err := supervisor.Caller{UID: uid, Sudo: uid != 0}.StateDir("")
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(path); err != nil {
		return nil, &supervisor.Refusal{What: "user " + strconv.Itoa(uid) + " has no records", Err: err}
	}
	return runs.OpenState(path, 0)
}

// eachUser calls do with what stands for each user who has records. Of one whose records
// cannot be read the others are not held up.
func eachUser(state string, quiet bool, do func(of string) error) error {
	if state != "" {
		return errors.New("--all takes the records of all users: leave --state and --user out")
	}
	users, err := recordUsers()
	if err != nil {
		return err
	}
	var errs []error
	for _, uid := range users {
		if !quiet {
			fmt.Printf("user %s\n", trace.Line(uid))
		}
		errs = append(errs, do(ofUser+uid))
	}
	return errors.Join(errs...)
}

// recordUsers are the numbers of the users who have records.
func recordUsers() ([]string, error) {
	if chooseMode(false) == byHelper {
		f, err := askOnce(&helper.Frame{Kind: helper.Users})
		if err != nil {
			return nil, err
		}
		if len(f.Lists) != 1 {
			return nil, errors.Join(fmt.Errorf("the helper's answer: %w", helper.ErrFrame), f.Close())
		}
		return f.Lists[0], f.Close()
	}
	c, err := caller()
	if err != nil {
		return nil, err
	}
	if c.UID != 0 || c.Sudo {
		return nil, &supervisor.Refusal{What: "--all takes root, or the audit group and the helper", Remedy: "agentguard.socket, and gpasswd -a USER agentguard-audit"}
	}
	list, err := supervisor.RecordUsers()
	out := []string{"0"}
	for _, uid := range list {
		out = append(out, strconv.Itoa(uid))
	}
	return out, err
}
