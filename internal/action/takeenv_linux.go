package action

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// TakeEnv takes a variable out of this process: out of the table that Go keeps
// and that children would inherit, and out of the memory that the kernel shows
// as /proc/PID/environ (proc_pid_environ(5)), where the value is overwritten. It
// must be called before the process gives up being dumpable.
func TakeEnv(name string) (value string, found bool, err error) {
	value, found = os.LookupEnv(name)
	if !found {
		return "", false, nil
	}
	if err := os.Unsetenv(name); err != nil {
		return "", true, err
	}
	if err := scrubEnviron(name); err != nil {
		return "", true, fmt.Errorf("%s cannot be taken out of /proc/self/environ: %w", name, err)
	}
	return value, true, nil
}

func scrubEnviron(name string) error {
	env, err := os.ReadFile("/proc/self/environ")
	if err != nil {
		return err
	}
	start, err := environStart()
	if err != nil {
		return err
	}
	mem, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer mem.Close()
	at := 0
	for entry := range bytes.SplitSeq(env, []byte{0}) {
		if value, ok := bytes.CutPrefix(entry, []byte(name+"=")); ok {
			clear(value) // env holds a copy of it
			if _, err := mem.WriteAt(make([]byte, len(value)), start+int64(at+len(entry)-len(value))); err != nil {
				return err
			}
		}
		at += len(entry) + 1
	}
	return nil
}

// environStart is where the environment lies: env_start, field 50 of
// /proc/PID/stat (proc_pid_stat(5)).
func environStart() (int64, error) {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0, err
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // the first is field 3
	if len(fields) < 48 {
		return 0, fmt.Errorf("/proc/self/stat has %d fields", len(fields))
	}
	return strconv.ParseInt(string(fields[47]), 10, 64)
}
