//go:build linux

package main

import (
	"cmp"
	"os"

	"golang.org/x/sys/unix"
)

// mode is who makes the envelope and the record of a run.
type mode int

const (
	inProcess    mode = iota // this process, which is root's
	byHelper                 // the privileged helper, on behalf of this process
	unprivileged             // nobody has the rights
)

// chooseMode decides by what there is, never by a flag: a caller with root needs no
// helper, and one without gets the most that the host has for it.
func chooseMode() mode {
	switch {
	case os.Geteuid() == 0:
		return inProcess
	case unix.Access(helperSocket(), unix.F_OK) == nil:
		return byHelper
	}
	return unprivileged
}

// defaultSocket is where the helper listens.
const defaultSocket = "/run/agentguard/agentguard.sock"

// helperSocket may be named by the caller's environment: it is the caller who asks,
// and who checks that root answers.
func helperSocket() string { return cmp.Or(os.Getenv("AGENTGUARD_SOCKET"), defaultSocket) }
