package helper

import (
	"bytes"
	"os"
	"os/user"
	"strconv"
	"sync"
	"time"
)

// subuidFile is where useradd(8) gives users ranges of further uids, for newuidmap(1).
const subuidFile = "/etc/subuid"

// owners finds the user that a uid was given to (subuid(5)): one by one they would be as
// many callers as the range is long. The file is read again when it has changed.
type owners struct {
	path string

	mu     sync.Mutex
	read   time.Time // its change, as of when it was read
	size   int64
	ranges []uidRange
}

type uidRange struct{ owner, first, count int }

// of is the owner of a uid, itself where it was given to nobody.
func (o *owners) of(uid int) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	st, err := os.Stat(o.path)
	if err != nil {
		return uid
	}
	if !st.ModTime().Equal(o.read) || st.Size() != o.size {
		b, err := os.ReadFile(o.path)
		if err != nil {
			return uid
		}
		o.ranges, o.read, o.size = parseSubuid(b, uidOf), st.ModTime(), st.Size()
	}
	for _, r := range o.ranges {
		if uid >= r.first && uid-r.first < r.count {
			return r.owner
		}
	}
	return uid
}

// parseSubuid reads lines of user:first:count; what is none is left out, as newuidmap does.
func parseSubuid(b []byte, number func(string) (int, error)) (out []uidRange) {
	for line := range bytes.Lines(b) {
		f := bytes.Split(bytes.TrimSpace(line), []byte(":"))
		if len(f) != 3 {
			continue
		}
		owner, err := number(string(f[0]))
		if err != nil {
			continue
		}
		first, err := strconv.ParseUint(string(f[1]), 10, 32)
		if err != nil {
			continue
		}
		count, err := strconv.ParseUint(string(f[2]), 10, 32)
		if err == nil {
			out = append(out, uidRange{owner, int(first), int(count)})
		}
	}
	return out
}

func uidOf(name string) (int, error) {
	if n, err := strconv.ParseUint(name, 10, 32); err == nil {
		return int(n), nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(u.Uid)
}
