package main

import (
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentguard/agentguard/trace/seal"
)

// A copied log whose signed head was emptied is no log.
func TestCopiedLogWithoutHead(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"entries", "head"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if l, err := copiedLog(dir, nil); !errors.Is(err, fs.ErrNotExist) || l != nil {
		t.Errorf("%v, %v", l, err)
	}
}

// A proof of a line that is no record of ours, as a record may hold that was
// recovered, is shown without what a terminal acts on.
func TestProofOfHostileLine(t *testing.T) {
	key, err := seal.NewKey("test/host")
	if err != nil {
		t.Fatal(err)
	}
	hosts, err := seal.ParseKeys(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	const line = "{\"v\":1,\"seq\":1,\"x\":\"\x1b]0;x\x07\"}"
	b := seal.NewBuilder()
	b.Add([]byte(line + "\n"))
	note, err := seal.Checkpoint{Run: "one", Head: b.Cut(), Time: time.Unix(1, 0)}.Sign(key)
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256([]byte(line + "\n"))
	proof, err := (&seal.Proof{Type: seal.ProofType, Run: "one", Line: line, Digests: [][]byte{digest[:]}, Checkpoint: string(note)}).JSON()
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func(old *os.File) { os.Stdout = old }(os.Stdout)
	os.Stdout = w
	for _, asJSON := range []bool{false, true} {
		if err := verifyProof(proof, "", hosts, asJSON); err != nil {
			t.Error(err)
		}
	}
	w.Close()
	out, err := io.ReadAll(r)
	if err != nil || strings.Contains(string(out), "\x1b") || strings.Count(string(out), "]0;x") != 2 {
		t.Errorf("%q, %v", out, err)
	}
}
