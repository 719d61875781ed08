package supervisor

import (
	"bytes"
	"encoding/binary"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentguard/agentguard/internal/action"
	"github.com/agentguard/agentguard/internal/runs"
)

func dispatchState(t *testing.T) *runs.State {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "agentguard-dispatch-")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s, err := runs.OpenState(dir, os.Getuid())
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// Whoever asks at the same time, no more than the limit go through.
func TestTakeRate(t *testing.T) {
	s := dispatchState(t)
	var through atomic.Int64
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if takeRate(s, "a", 2, 11) == nil {
				through.Add(2)
			}
		})
	}
	all.Wait()
	if through.Load() != 10 {
		t.Errorf("%d went through", through.Load())
	}
	if err := takeRate(s, "a", 2, 11); err == nil || !strings.Contains(err.Error(), "10 requests in the last minute, and limits.per_minute is 11") {
		t.Error(err)
	}
	must(t, takeRate(s, "a", 1, 11))
	must(t, takeRate(s, "b", 11, 11))
}

// What is a minute old, or of a clock that was set back, counts no more.
func TestTakeRateForgets(t *testing.T) {
	s := dispatchState(t)
	var b []byte
	for _, at := range []time.Time{time.Now().Add(-time.Minute - time.Second), time.Now().Add(time.Hour), time.Now().Add(-time.Second)} {
		b = binary.LittleEndian.AppendUint64(b, uint64(at.UnixNano()))
	}
	dir, err := dispatchDir(s)
	must(t, err)
	defer dir.Close()
	must(t, os.WriteFile(s.Path()+"/dispatch/rate-a", b, 0o600))
	must(t, takeRate(s, "a", 1, 2))
	if takeRate(s, "a", 1, 2) == nil {
		t.Error("the second of the last minute was forgotten")
	}
}

// The digest of a credential's name is the same for all who ask at once, another
// in another state directory, and tells nothing of the name.
func TestCredentialID(t *testing.T) {
	c := &action.Credential{Kind: action.FromFile, Name: "/etc/token"}
	ids := map[string]bool{}
	var mu sync.Mutex
	var all sync.WaitGroup
	s := dispatchState(t)
	for range 8 {
		all.Go(func() {
			id, err := credentialID(s, c)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			ids[id] = true
			mu.Unlock()
		})
	}
	all.Wait()
	other, err := credentialID(dispatchState(t), c)
	must(t, err)
	if len(ids) != 1 || ids[other] || len(other) != 32 {
		t.Errorf("%v %s", ids, other)
	}
	st, err := os.Stat(s.Path() + "/dispatch/key")
	must(t, err)
	if st.Mode() != 0o600 || st.Size() != 32 {
		t.Error(st.Mode(), st.Size())
	}
}

// The last approval of a path counts, and a torn line is none.
func TestApprovals(t *testing.T) {
	s := dispatchState(t)
	if _, ok, err := approved(s, "/a"); ok || err != nil {
		t.Error(ok, err)
	}
	for _, digest := range []string{"1", "2"} {
		must(t, approve(s, Approval{Path: "/a", SHA256: digest}))
		must(t, approve(s, Approval{Path: "/b", SHA256: "0"}))
	}
	name := s.Path() + "/dispatch/approved"
	b, err := os.ReadFile(name)
	must(t, err)
	must(t, os.WriteFile(name, append(bytes.Clone(b), `{"path":"/a","sha2`...), 0o600))
	if a, ok, err := approved(s, "/a"); !ok || err != nil || a.SHA256 != "2" {
		t.Error(a, ok, err)
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	_, err = f.WriteString(`{"path":"/a","sha`) // by a writer that was killed
	must(t, err, f.Close(), approve(s, Approval{Path: "/a", SHA256: "3"}))
	if a, ok, err := approved(s, "/a"); !ok || err != nil || a.SHA256 != "3" {
		t.Errorf("%+v %v %v", a, ok, err)
	}
}
