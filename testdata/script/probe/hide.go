package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// The first thread of a probe that hides is the one that ends.
func init() {
	if len(os.Args) > 1 && os.Args[1] == "hide" {
		runtime.LockOSThread()
	}
}

// hide is refused some calls, and tries to reach the network, as a program that does not want
// to be seen; then its first thread ends, and another one executes true.
func hide() {
	fmt.Println("dumpable", unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) == nil)
	fmt.Println("mm", unix.Prctl(unix.PR_SET_MM, unix.PR_SET_MM_MAP, 0, 0, 0))
	fmt.Println("mkdir", unix.Mkdir("made", 0o6755))
	fmt.Println("mount", unix.Mount("secret", "/path", "", 0, ""))
	go func() {
		runtime.LockOSThread()
		for b, err := []byte(nil), error(nil); err == nil && !bytes.Contains(b, []byte(") Z")); time.Sleep(time.Millisecond) {
			b, err = os.ReadFile("/proc/self/stat") // where it is not shown, it may be that both are alive
		}
		fatal(fmt.Sprint(unix.Exec("/usr/bin/true", []string{"true", "hidden"}, nil)))
	}()
	_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0) // does not return
}
