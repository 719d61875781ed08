package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"

	"github.com/agentguard/agentguard/trace"
)

// sumOfFile is the digest of a file of the host.
func sumOfFile(name string) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	return sumOfText(string(b))
}

func sumOfText(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// ran is nil where the record has the content, once, under the path that it was
// executed by ("" is text that was no file).
func (r *evidence) ran(path, sum string) error {
	found := r.find(trace.KindCode, func(e *trace.Event) bool { return string(e.Path) == path && e.SHA256 == sum })
	if len(found) != 1 {
		return fmt.Errorf("%d records of the code of %q with digest %s", len(found), path, sum)
	}
	return nil
}

// ranMemory is nil where the content is known, or is said to be unknown since
// the process was gone too soon.
func (r *evidence) ranMemory(ino uint64, sum string) error {
	return want("code in memory", r.find(trace.KindCode, func(e *trace.Event) bool {
		return e.Ino == ino && (e.HashState == "memfd" && e.SHA256 == sum || e.HashState == "raced" && e.SHA256 == "")
	}))
}

// hashed is nil where each exec carries the digest.
func hashed(execs []trace.Event, sum string) error {
	for _, e := range execs {
		if e.SHA256 != sum || e.HashState != "ok" {
			return fmt.Errorf("exec of %q: digest %q, %s; want %s", e.Path, e.SHA256, e.HashState, sum)
		}
	}
	return nil
}

// checkHeld: who can still write to what is executed is seen below an overlay too.
func checkHeld(r *evidence) error {
	sum := sumOfFile("/bin/true")
	states := map[string]string{}
	for _, e := range r.find(trace.KindExec, func(e *trace.Event) bool { return e.SHA256 == sum }) {
		states[string(e.Path)] += e.HashState
	}
	want := map[string]string{r.in("held"): "raced", r.in("free"): "ok", r.in("again"): "okraced", r.in("new/moved"): "raced", r.in("gone"): "raced"}
	if !maps.Equal(states, want) {
		return fmt.Errorf("digests are %v, want %v", states, want)
	}
	return nil
}

// checkOwnMemory wants to be told of memory whose content no file says.
func checkOwnMemory(r *evidence) error {
	told := map[string]int{}
	for _, e := range r.find(trace.KindMmapExec, func(e *trace.Event) bool { return e.Anon && bytes.HasPrefix(e.Path, []byte(r.dir)) }) {
		told[string(e.Path)] += int(e.Times())
	}
	want := map[string]int{r.in("segment"): 1, r.in("stack"): 1, r.in("plain"): 1}
	if !maps.Equal(told, want) {
		return fmt.Errorf("told %v, want %v", told, want)
	}
	if n := len(r.find(trace.KindDeny, refused("shmat"))); n != 1 {
		return fmt.Errorf("%d refusals of shmat", n)
	}
	return nil
}
