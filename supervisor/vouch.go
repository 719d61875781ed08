package supervisor

import (
	"os"
	"path/filepath"
	"strconv"

	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/vault"
)

// OpenVault opens what vouches for the records in a state directory: it lies
// there too, but for those of users under sudo in root's own.
func OpenVault(c Caller, s *runs.State) (*vault.Vault, error) {
	if LogUser(c, s) == 0 {
		return vault.Open(s.Dir())
	}
	home, err := runs.OpenState(rootState(s), os.Getuid())
	if err != nil {
		return nil, err
	}
	defer home.Close()
	return vault.Open(home.Dir())
}

// LogUser is the uid under which the host's log has the runs of a state
// directory: that of the user whose records are kept apart in root's (see
// Caller.StateDir), also when root looks at them, else 0.
func LogUser(c Caller, s *runs.State) int {
	if c.Sudo {
		return c.UID
	}
	uid, err := strconv.Atoi(filepath.Base(s.Path()))
	if err != nil || uid <= 0 || filepath.Base(filepath.Dir(s.Path())) != "users" {
		return 0
	}
	def, err := runs.DefaultPath(0, os.Getenv)
	if err != nil {
		return 0
	}
	a, aerr := os.Stat(def)
	b, berr := os.Stat(rootState(s))
	if aerr != nil || berr != nil || !os.SameFile(a, b) {
		return 0
	}
	return uid
}

// rootState is the directory that holds "users" with a user's state in it.
func rootState(s *runs.State) string { return filepath.Dir(filepath.Dir(s.Path())) }
