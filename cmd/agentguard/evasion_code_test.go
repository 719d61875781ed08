package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
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
