//go:build linux

// Package lostthread runs functions that change their thread for good: its ids, its
// namespaces, its filters, its priority.
package lostthread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Run calls fn on a thread that ends with the call, and with it all that fn did to it.
// The process's first thread does not end before the process (Go parks it), and is what
// /proc/PID shows of the process: fn never runs there.
func Run(fn func() error) error {
	done := make(chan error, 1)
	go lose(fn, done)
	return <-done
}

// lose never unlocks its thread, unless that is the first one, which hands the work on. It
// stays locked meanwhile, so that the work cannot come to it again.
func lose(fn func() error, done chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		done <- Run(fn)
		runtime.UnlockOSThread()
		return
	}
	done <- fn()
}
