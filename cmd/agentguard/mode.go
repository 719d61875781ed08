//go:build linux

package main

import (
	"cmp"
	"os"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/supervisor"
)

// mode is who makes the envelope and the record of a run.
type mode int

const (
	inProcess    mode = iota // this process, which is root's
	byHelper                 // the privileged helper, on behalf of this process
	unprivileged             // this process, in namespaces of its own (decision 0031)
)

// chooseMode decides by what there is: a caller with root needs no helper, and one without
// gets the most that the host has for it. What a helper refuses is refused: only who asks for less
// by name, with --without-helper, gets less.
func chooseMode(withoutHelper bool) mode {
	switch {
	case supervisor.HostRoot():
		return inProcess
	case !withoutHelper && expectHelper():
		return byHelper
	}
	return unprivileged
}

// enter chooses who makes the run and, where that is this process without root, moves it
// into namespaces of its own: then it does not return, but is started again and comes here
// once more.
func (f *execFlags) enter() error {
	f.mode = chooseMode(f.withoutHelper)
	if f.mode != unprivileged {
		return nil
	}
	in, err := supervisor.Entered()
	if !in {
		err = supervisor.Enter()
	}
	if supervisor.Lesser() { // what it lacks is refused later, or was accepted
		return nil
	}
	return err
}

// defaultSocket is where the helper listens.
const defaultSocket = "/run/agentguard/agentguard.sock"

// socketVar names the helper's socket: it is the caller who asks, and who checks that
// root answers. With noSocket the caller goes without a helper.
const (
	socketVar = "AGENTGUARD_SOCKET"
	noSocket  = "none"
)

func helperSocket() string { return cmp.Or(os.Getenv(socketVar), defaultSocket) }

// expectHelper reports whether a helper is to be asked: the one that is named, and none
// other in its place when it does not answer; where none is named, one that is installed.
func expectHelper() bool {
	switch os.Getenv(socketVar) {
	case noSocket:
		return false
	case "":
		return unix.Access(defaultSocket, unix.F_OK) == nil
	}
	return true
}
