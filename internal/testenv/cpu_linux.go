package testenv

import (
	"time"

	"golang.org/x/sys/unix"
)

// CPUTime is what this process has used so far, in all of its threads (clock_gettime(2)):
// how long something takes whatever else the machine does. Elsewhere than on Linux it is the time of day.
func CPUTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts) // fails for unknown clocks only
	return time.Duration(ts.Nano())
}
