package mountinfo

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Read returns the mount table of this process.
func Read() ([]byte, error) { return read("/proc/self/mountinfo") }

// ReadThread returns that of the calling thread.
func ReadThread() ([]byte, error) { return read("/proc/thread-self/mountinfo") }

// read does it by plain system calls, with room for what the kernel gives at once, a page: a start
// waits for it, and os.ReadFile begins with 512 bytes.
func read(name string) ([]byte, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	for b := make([]byte, 0, 8192); ; {
		n, err := unix.Read(fd, b[len(b):cap(b)])
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return nil, &os.PathError{Op: "read", Path: name, Err: err}
		case n == 0:
			return b, nil
		}
		if b = b[:len(b)+n]; cap(b)-len(b) < 4096 {
			b = slices.Grow(b, 2*len(b))
		}
	}
}
