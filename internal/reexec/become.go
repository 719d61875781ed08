package reexec

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// idsVar is the whole environment of a process that is to be somebody else than who starts it: uid,
// gid and other groups.
const idsVar = "AGENTGUARD_IDS"

// Environ is what such a process is started with, for [Become]. It is started with our own ids:
// with those of its user at its execve, that user could trace it and open its memory
// until it says otherwise, and keep what was opened. Who changes ids afterwards is not
// dumpable (prctl(2), PR_SET_DUMPABLE). It is empty where that is who we are: a user without root can
// take no ids, and in a user namespace give up no groups either.
func (who Identity) Environ() []string {
	if who.UID == os.Geteuid() && who.GID == os.Getegid() {
		return []string{}
	}
	list := []string{strconv.Itoa(who.UID), strconv.Itoa(who.GID)}
	for _, g := range who.Groups {
		list = append(list, strconv.Itoa(g))
	}
	return []string{idsVar + "=" + strings.Join(list, " ")}
}

// Become takes the ids that the process was started for, before it reads anything.
func Become() error {
	text, ok := os.LookupEnv(idsVar)
	if !ok {
		return nil
	}
	var list []int
	for _, s := range strings.Fields(text) {
		n, err := strconv.Atoi(s)
		if err != nil {
			return err
		}
		list = append(list, n)
	}
	if len(list) < 2 {
		return errors.New("no ids")
	}
	uid, gid := list[0], list[1]
	if err := errors.Join(syscall.Setgroups(list[2:]), syscall.Setresgid(gid, gid, gid), syscall.Setresuid(uid, uid, uid)); err != nil {
		return fmt.Errorf("ids of user %d: %w", uid, err)
	}
	return os.Unsetenv(idsVar)
}
