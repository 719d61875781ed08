package netguard

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/lockdown"
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
	debug.SetGCPercent(gcPercent)
	if err := lockdown.Enter(cfg.Seccomp, softMemory, hardMemory); err != nil {
		return err
	}
	events := newReporter(func(b []byte) error { _, err := conn.Write(b); return err })
	s := newServer(cfg, events)
	err = s.follow(conn)
	s.end()
	return err
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
		return s.useSYN(role, f)
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
