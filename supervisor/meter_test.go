package supervisor

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/internal/tally"
	"github.com/agentguard/agentguard/policy"
)

// Processes are looked at as often as the nearest limit asks for.
func TestRoom(t *testing.T) {
	none := Limits{Memory: -1, CPU: -1, Output: -1}
	limited := func(change func(*Limits)) Limits {
		l := none
		change(&l)
		return l
	}
	for _, tt := range []struct {
		name   string
		limits Limits
		use    tally.Use
		least  time.Duration
		most   time.Duration
	}{
		{"no limit", none, tally.Use{Memory: 1 << 40, CPU: time.Hour, Written: 1 << 40}, lookSeldom, lookSeldom},
		{"far", limited(func(l *Limits) { l.Memory = 64 << 30 }), tally.Use{Memory: 1 << 20}, lookSeldom, lookSeldom},
		{"near", limited(func(l *Limits) { l.Memory = 256 << 20 }), tally.Use{}, 60 * time.Millisecond, 65 * time.Millisecond},
		{"met", limited(func(l *Limits) { l.Memory = 1 << 20 }), tally.Use{Memory: 2 << 20}, -time.Hour, 0},
		{"cpu", limited(func(l *Limits) { l.CPU = int64(time.Second) }), tally.Use{CPU: time.Second - 10*time.Millisecond*time.Duration(cpus())}, 10 * time.Millisecond, 10 * time.Millisecond},
		{"output", limited(func(l *Limits) { l.Output = 1 << 30 }), tally.Use{Written: 1<<30 - 4<<20}, 900 * time.Microsecond, time.Millisecond},
	} {
		if got := room(&tt.use, &tt.limits); got < tt.least || got > tt.most {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

// What no cgroup has counted is in the result all the same; what one has stays.
func TestMeterFills(t *testing.T) {
	m := &meter{peak: 100, use: tally.Use{CPU: 5 * time.Second}}
	u := runs.Usage{MaxMemory: 50, User: time.Second, System: time.Second}
	m.fill(&u)
	if u.MaxMemory != 100 || u.User != 4*time.Second || u.System != time.Second {
		t.Errorf("%+v", u)
	}
	u = runs.Usage{MaxMemory: 500, User: 9 * time.Second}
	m.fill(&u)
	if u.MaxMemory != 500 || u.User != 9*time.Second {
		t.Errorf("%+v", u)
	}
	(*meter)(nil).fill(&u)
	if (*meter)(nil).hits(&runs.Result{Reason: runs.ReasonMemory}, runs.ReasonMemory) != 0 || m.hits(&runs.Result{Reason: runs.ReasonMemory}, runs.ReasonMemory) != 1 {
		t.Error("hits")
	}
}

// Each limit says which layer it has, and a cgroup with controllers leaves nothing to say.
func TestSampledThin(t *testing.T) {
	p := &Plan{Host: HostInfo{Mode: ModeUserNS, Samples: true, CountsTasks: true, MissingControllers: []string{"memory", "pids"}}}
	p.Limits = Limits{Memory: 1, CPU: 1, Tasks: 5, Counted: true}
	first := func() (out []string) {
		for _, s := range p.sampledThin() {
			name, _, _ := strings.Cut(s, ":")
			out = append(out, name)
		}
		return out
	}
	if got := first(); !slices.Equal(got, []string{"memory", "cpu", "output", "tasks", "limits"}) || !p.tasksByUser() {
		t.Errorf("%q", got)
	}
	p.Host.CgroupDelegated, p.Limits.Counted = "/sys/fs/cgroup/x", false
	if got := first(); !slices.Equal(got, []string{"memory", "tasks", "limits"}) {
		t.Errorf("%q", got)
	}
	p.Host.MissingControllers = nil
	if got := first(); len(got) > 0 || p.tasksByUser() {
		t.Errorf("%q", got)
	}
	p.Host.MissingControllers, p.Limits.Tasks, p.Limits.Memory = []string{"memory", "pids"}, -1, -1
	if got := first(); len(got) > 0 || p.tasksByUser() {
		t.Errorf("%q", got)
	}
}

// Who hides what a written limit counts ends the run; a limit that nobody wrote is told to have been missing, once.
func TestMeterHides(t *testing.T) {
	written := policy.Source{Flag: "--x"}
	pol := func(memory, cpu, output bool) *policy.Policy {
		p := &policy.Policy{}
		for l, on := range map[*policy.Limit]bool{&p.MaxMemory: memory, &p.MaxCPU: cpu, &p.MaxOutputBytes: output} {
			if on {
				l.Source = written
			}
		}
		return p
	}
	seen, whole := tally.Hidden{PID: 7, Name: "evil\x1b"}, tally.Hidden{PID: 7, Whole: true}
	all := Limits{Memory: 1, CPU: 1, Output: -1}
	for _, tt := range []struct {
		name    string
		hidden  tally.Hidden
		limits  Limits
		policy  *policy.Policy
		says    string // of the run's end; "": it goes on
		unknown string
	}{
		{"nobody", tally.Hidden{}, all, pol(true, true, false), "", ""},
		{"memory", seen, all, pol(true, false, false), "its memory", ""},
		{"memory of a default", seen, all, pol(false, false, false), "", "its memory"},
		{"cpu is there to be seen", seen, all, pol(false, true, false), "", "its memory"},
		{"cpu is not", whole, all, pol(false, true, false), "hidepid, so --cpu", ""},
		{"output", seen, Limits{Memory: -1, CPU: -1, Output: 1}, pol(false, false, true), "what it writes", ""},
		{"cpu of who ends at once", tally.Hidden{PID: 7, Brief: true}, all, pol(false, true, false), "end before they can be read, so --cpu", ""},
		{"no limit", whole, Limits{Memory: -1, CPU: -1, Output: -1}, pol(false, false, false), "", ""},
	} {
		m := &meter{use: tally.Use{Hidden: tt.hidden}}
		reason := m.hides(tt.limits, tt.policy)
		if (reason == runs.ReasonHidden) != (tt.says != "") || !strings.Contains(m.hidden, tt.says) || strings.Contains(m.hidden, "\x1b") {
			t.Errorf("%s: %q, %q", tt.name, reason, m.hidden)
		}
		if (m.unknown != nil) != (tt.unknown != "") || m.unknown != nil && (m.unknown.Guarantee != clauseMemory || !strings.Contains(m.unknown.Why, tt.unknown) || m.unknown.Remedy != helperRemedy) {
			t.Errorf("%s: %+v", tt.name, m.unknown)
		}
		if first := m.unknown; first != nil {
			if m.hides(tt.limits, tt.policy); m.unknown != first {
				t.Errorf("%s: told twice", tt.name)
			}
		}
	}
}

// Looks that fail, twice in a row, are as if somebody hid; one that takes long does not make the next one late.
func TestMeterFails(t *testing.T) {
	l := Limits{Memory: 100, CPU: -1, Output: -1}
	written := &policy.Policy{}
	written.MaxMemory.Source = policy.Source{Flag: "--memory"}
	slow := looked{err: tally.ErrLate, took: time.Hour}
	for _, tt := range []struct {
		name   string
		looks  []looked
		policy *policy.Policy
		says   string
		told   bool
	}{
		{"once", []looked{slow}, written, "", false},
		{"twice", []looked{slow, {err: unix.EMFILE}}, written, "twice in a row (too many open files), so --memory", false},
		{"not in a row", []looked{slow, {}, slow}, written, "", false},
		{"a default", []looked{slow, slow}, &policy.Policy{}, "", true},
		{"of a run that has ended", []looked{{err: os.ErrNotExist}, {err: unix.ESRCH}}, written, "", false},
	} {
		m := &meter{}
		for _, got := range tt.looks {
			if reason := m.take(got, l); reason != "" || m.pause > lookRarely || m.pause < lookOften {
				t.Errorf("%s: %q, %v", tt.name, reason, m.pause)
			}
		}
		reason := m.hides(l, tt.policy)
		if (reason == runs.ReasonHidden) != (tt.says != "") || !strings.Contains(m.hidden, tt.says) || (m.unknown != nil) != tt.told {
			t.Errorf("%s: %q, %q, %v", tt.name, reason, m.hidden, m.unknown)
		}
	}
}

func TestHidePID(t *testing.T) {
	const root = "20 1 254:0 / / rw - ext4 /dev/vda rw\n"
	for text, want := range map[string]string{
		root: "",
		root + "21 20 0:5 / /proc rw,nosuid - proc proc rw\n":                                                                     "",
		root + "21 20 0:5 / /proc rw - proc proc rw,hidepid=invisible\n":                                                          "hidepid=invisible",
		root + "21 20 0:5 / /proc rw - proc proc rw,gid=4,hidepid=2\n":                                                            "hidepid=2",
		root + "21 20 0:5 / /proc rw - proc proc rw,hidepid=off\n":                                                                "",
		root + "21 20 0:5 / /proc rw - proc proc rw,hidepid=invisible\n22 21 0:6 / /proc rw - proc proc rw\n":                     "",
		root + "21 20 0:5 / /proc rw - proc proc rw\n22 20 0:6 / /mnt/proc rw - proc proc rw,hidepid=2\n23 20 0:7 / /proc/x rw\n": "",
	} {
		if got := hidePID([]byte(text)); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
}
