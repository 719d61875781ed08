package supervisor

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/policy"
)

func TestChooseIdentity(t *testing.T) {
	owned := func(uid, gid uint32) *Opened { return &Opened{Path: "/srv/ws", Stat: unix.Stat_t{Uid: uid, Gid: gid}} }
	root := Caller{}
	user := Caller{UID: testUID, GID: testGID, Sudo: true}
	for _, c := range []struct {
		name   string
		user   string
		caller Caller
		owner  *Opened
		want   Identity
		err    string
	}{
		{name: "root, nothing writable", caller: root, want: Identity{Own: true, Why: "a uid of the run's own"}},
		{name: "root's own workspace", caller: root, owner: owned(0, 0), want: Identity{Own: true, Why: "a uid of the run's own"}},
		{name: "root in a user's workspace", caller: root, owner: owned(testUID, 77), want: Identity{UID: testUID, GID: 77, Why: "owner of /srv/ws"}},
		{name: "sudo", caller: user, want: Identity{UID: testUID, GID: testGID, Why: "the caller"}},
		{name: "sudo in root's workspace", caller: user, owner: owned(0, 0), want: Identity{UID: testUID, GID: testGID, Why: "the caller"}},
		{name: "sudo in another's workspace", caller: user, owner: owned(testUID+1, 1), want: Identity{UID: testUID, GID: testGID, Why: "the caller"}},
		{name: "root asks for a user", caller: root, user: itoa(testUID + 9), want: Identity{UID: testUID + 9, GID: testUID + 9, Why: "asked for"}},
		{name: "root asks for root", caller: root, user: "0", want: Identity{Why: "asked for"}},
		{name: "a user asks for itself", caller: user, user: itoa(testUID), want: Identity{UID: testUID, GID: testGID, Why: "asked for"}},
		{name: "a user asks for root", caller: user, user: "0", err: "user 723401 may not run commands as user 0 [process.user (p.yaml:1:3)]; remove --user, or call as root itself"},
		{name: "a user asks for another", caller: user, user: "33", err: "user 723401 may not run commands as user 33"},
		{name: "a name", caller: root, user: "nobody", err: `user "nobody" is not a numeric user id [process.user (p.yaml:1:3)]; give a number, as in --user 1000`},
		{name: "negative", caller: root, user: "-1", err: `user "-1" is not a numeric`},
		{name: "(uid_t)-1", caller: root, user: "4294967295", err: `user "4294967295" is not a numeric`},
		{name: "wraps to 0", caller: root, user: "4294967296", err: `user "4294967296" is not a numeric`},
		{name: "hostile", caller: root, user: "1\x1b[2J", err: `user "1\x1b[2J" is not`},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &policy.Policy{User: policy.Text{Value: c.user, Source: lineOf(1)}}
			got, err := chooseIdentity(p, c.caller, c.owner, ModeRoot)
			if c.err != "" {
				if r := refusal(t, err); !strings.HasPrefix(err.Error(), c.err) || r.Status != 0 {
					t.Errorf("%v, want %s", err, c.err)
				}
				return
			}
			if err != nil || got != c.want {
				t.Errorf("%+v, %v, want %+v", got, err, c.want)
			}
		})
	}
}

// The range of runs' uids meets neither systemd's nor PID 1's.
func TestOwnRange(t *testing.T) {
	if ownUIDBase <= GuardianUID || ownUIDBase+ownUIDs >= 0x7fffffff || GuardianUID < 0x70000000 {
		t.Errorf("range %#x..%#x, PID 1 %#x", ownUIDBase, ownUIDBase+ownUIDs-1, GuardianUID)
	}
}
