package supervisor

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	initproc "github.com/agentguard/agentguard/supervisor/init"
)

// Limits that our own process was started with stand in the way of a run, and the kernel says no more than
// an errno. getrlimit(2) tells which one it was.
var ownLimits = []struct {
	errno    unix.Errno
	resource int
	name     string
	what     string
	flag     string // of ulimit, and the setting of a systemd unit
}{
	{unix.EMFILE, unix.RLIMIT_NOFILE, "RLIMIT_NOFILE", "agentguard may have %d files open at a time, and a run takes more, the more the more it is granted", "ulimit -n 1024, LimitNOFILE="},
	{unix.EFBIG, unix.RLIMIT_FSIZE, "RLIMIT_FSIZE", "agentguard may write files of %d bytes, and has a record to write", "ulimit -f unlimited, LimitFSIZE="},
	{unix.EAGAIN, unix.RLIMIT_NPROC, "RLIMIT_NPROC", "agentguard's user may have %d processes and threads, all together", "ulimit -u, LimitNPROC="},
	{unix.ENOMEM, unix.RLIMIT_AS, "RLIMIT_AS", "agentguard may have %d bytes of address space", "ulimit -v unlimited, LimitAS="},
	{unix.ENOMEM, unix.RLIMIT_DATA, "RLIMIT_DATA", "agentguard may have %d bytes of data", "ulimit -d unlimited, LimitDATA="},
}

// byLimit names the limit of this process that err comes from; err itself where it comes from none.
func byLimit(err error) error {
	for _, l := range ownLimits {
		var have unix.Rlimit
		if !errors.Is(err, l.errno) || unix.Getrlimit(l.resource, &have) != nil || have.Cur == unix.RLIM_INFINITY {
			continue
		}
		var birth *initproc.BirthError
		if l.errno == unix.EAGAIN && !errors.As(err, &birth) { // else it may come from much
			continue
		}
		return &Refusal{
			What: fmt.Sprintf(l.what, have.Cur) + " (" + l.name + ")", Err: err,
			Remedy: "nothing was run; raise the limit where agentguard is started: " + l.flag + ", or limits.conf(5)",
		}
	}
	return err
}

// ownFileLimit is how long a file of ours may become; 0: as long as may be.
func ownFileLimit() int64 {
	var have unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_FSIZE, &have) != nil || have.Cur > 1<<62 {
		return 0
	}
	return max(int64(have.Cur), 1)
}

// cutTrace bounds the record by what a file may have: a record that is full is ended as one that has met its own
// limit, with its losses and its summary, where one that met the kernel's would break off.
func (p *Plan) cutTrace(most int64) {
	if most == 0 || p.Limits.Trace >= 0 && p.Limits.Trace <= most {
		return
	}
	p.Limits.Trace = most
	p.Lowered = append(p.Lowered, fmt.Sprintf("the record: %d bytes, by the RLIMIT_FSIZE that agentguard was started with", most))
}
