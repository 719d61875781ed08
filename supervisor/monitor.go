package supervisor

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// Timer slack of the runtime's monitor thread while a run is launched (and later: see settle), and the
// kernel's default, in nanoseconds (PR_SET_TIMERSLACK of prctl(2)).
const (
	launchSlack  = 2000000
	defaultSlack = 50000
)

// Hurry is for a process that is about to ask for a run and does little else: it lets the
// runtime's monitor sleep longer, as Execute does, until it is told that the hurry is over.
// Execute ends it as well.
func Hurry(on bool) {
	if on {
		slowMonitor(launchSlack)
	} else {
		slowMonitor(defaultSlack)
	}
}

// slowMonitor lets Go's monitor thread (sysmon in runtime/proc.go) sleep
// longer. While goroutines run it looks every 20 us, which the slack makes 70,
// whether one has been in a system call for that long and another needs its
// place. A launch is short system calls and two goroutines: the looks are a
// tenth of its work, and each takes a CPU from somebody. A failure costs only that.
//
// The monitor is the first thread that the runtime makes, and threads are
// listed in that order; on any other thread the slack would do no harm.
func slowMonitor(slack int) {
	fd, err := unix.Open("/proc/self/task", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	buf := make([]byte, 1024)
	n, err := unix.ReadDirent(fd, buf)
	if err != nil {
		return
	}
	_, _, tids := unix.ParseDirent(buf[:n], 2, nil)
	if len(tids) < 2 {
		return
	}
	file, err := unix.Open("/proc/"+tids[1]+"/timerslack_ns", unix.O_WRONLY|unix.O_CLOEXEC, 0) // 4.6
	if err != nil {
		return
	}
	defer unix.Close(file)
	_, _ = unix.Write(file, []byte(strconv.Itoa(slack)))
}
