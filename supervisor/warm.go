package supervisor

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/trace/seal"
)

// Warm does what the library does once a process and a launch needs: the table of
// Ed25519, and what encoding/json finds out about a type when it first meets it, which
// takes longer than to encode it. The keys are made for it: the host's is read when it is
// used, so that a process that waits holds none, and none that was replaced.
func Warm() error {
	key, err := seal.NewKey(seal.RunKeyName("warm"))
	if err != nil {
		return err
	}
	defer key.Erase()
	_, err = seal.Certificate{Run: "warm", Key: key.Public(), Time: time.Now()}.Sign(key)
	_, perr := (&Plan{}).JSON()
	return errors.Join(err, perr, warmJSON())
}

// warmJSON is what of it the sealer does while the command runs: at the end somebody waits.
func warmJSON() error {
	_, err := json.Marshal(&seal.Statement{})
	_, rerr := (&runs.Result{}).JSON()
	return errors.Join(err, rerr)
}
