package netguard

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Mode is the argument that makes a program of ours this process: see [Main].
const Mode = "__netguard"

const controlFD = 3

// Bounds of the process's memory: what the collector aims at, and what the
// kernel allows (RLIMIT_DATA: writable private memory).
const (
	softMemory = 64 << 20
	gcPercent  = 25 // most of what is held is idle
	hardMemory = 512 << 20
)

// Main is the process; it returns its exit status. It reads its configuration
// from standard input, receives its sockets on descriptor 3, and says there
// what happens. Errors go to standard error, which the supervisor reads.
func Main() int {
	if err := serveProcess(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func serveProcess() error {
	b, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	cfg, err := decodeConfig(b)
	if err != nil {
		return err
	}
	control := os.NewFile(controlFD, "control")
	c, err := net.FileConn(control)
	if err = errors.Join(err, control.Close()); err != nil {
		return err
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return errors.New("descriptor 3 is not the supervisor's socket")
	}
	if err := lockDown(cfg.Seccomp); err != nil {
		return err
	}
	events := newReporter(func(b []byte) error { _, err := conn.Write(b); return err })
	s := newServer(cfg, events)
	err = s.follow(conn)
	s.end()
	return err
}

// lockDown gives up what the process does not need, before it reads anything
// that a command wrote: no new privileges, no core, bounded memory, and the
// filter, on every thread.
func lockDown(filter []byte) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if os.Geteuid() == 0 {
		return errors.New("the process must not be root")
	}
	if err := leaveTerminal(); err != nil {
		return err
	}
	debug.SetMemoryLimit(softMemory)
	debug.SetGCPercent(gcPercent)
	if err := unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: hardMemory, Max: hardMemory}); err != nil {
		return os.NewSyscallError("setrlimit", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	if len(filter) == 0 || len(filter)%8 != 0 {
		return errors.New("the process has no system call filter")
	}
	prog := unix.SockFprog{Len: uint16(len(filter) / 8), Filter: (*unix.SockFilter)(unsafe.Pointer(unsafe.SliceData(filter)))}
	// TSYNC puts the filter, and with it no_new_privs, on all threads (seccomp(2)).
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	return nil
}

// leaveTerminal gives up the terminal of the session (tty_ioctl(4)): the process
// is not its leader, so that nobody else loses it.
func leaveTerminal() error {
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil // ENXIO: there is none; else it is out of reach, as it shall be
	}
	defer unix.Close(fd)
	return os.NewSyscallError("ioctl TIOCNOTTY", unix.IoctlSetInt(fd, unix.TIOCNOTTY, 0))
}

// follow takes sockets from the supervisor until it has no more to say: the run
// has ended, or the supervisor has.
func (s *server) follow(conn *net.UnixConn) error {
	buf, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4*maxRights))
	for {
		n, oobn, _, _, err := conn.ReadMsgUnix(buf, oob)
		if errors.Is(err, io.EOF) || err == nil && n == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		fds, err := receivedFDs(oob[:oobn])
		if err != nil {
			return err
		}
		if string(buf[:n]) == allSent {
			if err := s.begin(); err != nil {
				return err
			}
			continue
		}
		roles := strings.Fields(string(buf[:n]))
		if len(roles) != len(fds) {
			return fmt.Errorf("%d sockets came for %d roles", len(fds), len(roles))
		}
		for i, fd := range fds {
			if err := s.use(Role(roles[i]), fd); err != nil {
				return fmt.Errorf("%s: %w", roles[i], err)
			}
		}
	}
}

func receivedFDs(oob []byte) ([]int, error) {
	var all []int
	msgs, err := unix.ParseSocketControlMessage(oob)
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return all, err
		}
		all = append(all, fds...)
	}
	for _, fd := range all {
		unix.CloseOnExec(fd)
	}
	return all, err
}

// use begins to serve a socket of the namespace.
func (s *server) use(role Role, fd int) error {
	if role == Spare {
		s.sockets <- fd
		return nil
	}
	f := os.NewFile(uintptr(fd), string(role))
	defer f.Close()
	if err := unix.SetNonblock(fd, true); err != nil {
		return err
	}
	switch role {
	case DNSUDP4, DNSUDP6, UDP4, UDP6:
		return s.usePacket(role, f)
	case Raw4, Raw6:
		return s.useRaw(role, f)
	case SYN4, SYN6:
		return s.useSYN(f)
	}
	l, err := net.FileListener(f)
	if err != nil {
		return err
	}
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return errors.New("not a TCP listener")
	}
	if role == DNSTCP4 || role == DNSTCP6 {
		go s.serveTCP(tcp)
	} else {
		go s.serve(tcp)
	}
	return nil
}

func (s *server) usePacket(role Role, f *os.File) error {
	c, err := net.FilePacketConn(f)
	if err != nil {
		return err
	}
	udp, ok := c.(*net.UDPConn)
	switch {
	case !ok:
		return errors.New("not a UDP socket")
	case role == UDP4, role == UDP6:
		go s.flows.serve(udp)
	default:
		go s.serveUDP(udp)
	}
	return nil
}

// begin opens the published ports and says that the process serves.
func (s *server) begin() error {
	for _, port := range s.cfg.Publish {
		if err := s.publish(port); err != nil {
			return err
		}
	}
	go s.breakIdle(IdleLimit, idleLook)
	s.events.emit(Event{Kind: KindReady})
	return nil
}
