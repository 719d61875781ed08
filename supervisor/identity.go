package supervisor

import (
	"fmt"
	"os/user"
	"strconv"

	"github.com/agentguard/agentguard/policy"
)

// Identity is who the command runs as: UID and GID as the host numbers them.
type Identity struct {
	UID int    `json:"uid"`
	GID int    `json:"gid"`
	Own bool   `json:"own"` // a uid of the run's own, from the range below
	Why string `json:"why"` // one phrase for the plan
}

// The range of uids that runs without a user of their own take, one each while
// they live. It is outside of every range that systemd, login.defs and subuid
// files use (systemd's UIDS-GIDS.md). GuardianUID is PID 1's.
const (
	GuardianUID = 0x70000000
	ownUIDBase  = 0x70000001
	ownUIDs     = 4096
	dialUID     = ownUIDBase + ownUIDs // dials for runs whose caller is root
)

// chooseIdentity decides who the command runs as: the owner of the workspace
// when the caller may act as that user, else a uid of the run's own when
// caller and owner are root (Own; the uid itself is taken later).
// In a user namespace of its own there is nobody but the caller.
func chooseIdentity(p *policy.Policy, c Caller, owner *Opened, mode string) (Identity, error) {
	if p.User.Value != "" {
		return namedIdentity(p.User, c, mode)
	}
	switch {
	case c.UID != 0 || mode == ModeUserNS:
		return Identity{UID: c.UID, GID: c.GID, Why: "the caller"}, nil
	case owner != nil && owner.Stat.Uid != 0:
		uid := int(owner.Stat.Uid)
		return Identity{UID: uid, GID: primaryGroup(uid, int(owner.Stat.Gid)), Why: "owner of " + owner.Path}, nil
	}
	return Identity{Own: true, Why: "a uid of the run's own"}, nil
}

func namedIdentity(t policy.Text, c Caller, mode string) (Identity, error) {
	clause := clauseText("process.user", t.Source)
	uid, err := strconv.Atoi(t.Value)
	if err != nil || uid < 0 || uid >= 1<<31 {
		return Identity{}, &Refusal{What: fmt.Sprintf("user %q is not a numeric user id", t.Value), Clause: clause, Remedy: "give a number, as in --user 1000"}
	}
	if uid >= GuardianUID && uid <= dialUID {
		return Identity{}, &Refusal{What: fmt.Sprintf("user ids %d to %d are for runs without a user of their own", GuardianUID, dialUID), Clause: clause, Remedy: "leave --user out to get one"}
	}
	if (c.UID != 0 || mode == ModeUserNS) && c.UID != uid {
		return Identity{}, &Refusal{
			What: fmt.Sprintf("user %d may not run commands as user %d", c.UID, uid), Clause: clause,
			Remedy: "remove --user, or call as root itself",
		}
	}
	gid := c.GID // its own: what passwd says, or the number of the uid, may be a group that it is not in
	if c.UID != uid {
		gid = primaryGroup(uid, uid)
	}
	return Identity{UID: uid, GID: gid, Why: "asked for"}, nil
}

// primaryGroup is the login group of uid, or otherwise gid.
func primaryGroup(uid, gid int) int {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		if g, err := strconv.Atoi(u.Gid); err == nil {
			return g
		}
	}
	return gid
}
