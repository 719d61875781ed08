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
	"github.com/agentguard/agentguard/internal/reexec"
)

// Mode is the argument that makes a program of ours this process: see [Main].
const Mode = "__netguard"

// Bounds of the process's memory: what the collector aims at, and what the
// kernel allows (RLIMIT_DATA: writable private memory).
const (
	softMemory = 64 << 20
	gcPercent  = 25 // most of what is held is idle
	hardMemory = 512 << 20
)

// Main is the process; it returns its exit status. It reads its configuration
// from standard input, receives its sockets on descriptor 3, and says there
// what happens.
func Main() int { return reexec.Main(serveProcess) }

func serveProcess() error {
	b, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	cfg, err := decodeConfig(b)
	if err != nil {
		return err
	}
	conn, err := reexec.Control()
	if err != nil {
		return err
	}
	debug.SetGCPercent(gcPercent)
	if err := lockdown.Enter(cfg.Seccomp, softMemory, hardMemory); err != nil {
		return err
	}
	events := newReporter(func(b []byte) error { _, err := conn.Write(b); return err })
	s := newServer(cfg, events)
	err = reexec.Receive(conn, s.follow)
	s.end()
	return err
}

// follow takes sockets from the supervisor.
func (s *server) follow(message string, fds []int) error {
	if message == allSent {
		return s.begin()
	}
	roles := strings.Fields(message)
	if len(roles) != len(fds) {
		return fmt.Errorf("%d sockets came for %d roles", len(fds), len(roles))
	}
	for i, fd := range fds {
		if err := s.use(Role(roles[i]), fd); err != nil {
			return fmt.Errorf("%s: %w", roles[i], err)
		}
	}
	return nil
}

// use begins to serve a socket of the namespace.
func (s *server) use(role Role, fd int) error {
	if role == Spare {
		s.sockets <- fd
		return nil
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	f := os.NewFile(uintptr(fd), string(role))
	if role == TCP4 || role == TCP6 {
		s.serve(f)
		return nil
	}
	defer f.Close()
	switch role {
	case DNSUDP4, DNSUDP6, UDP4, UDP6:
		return s.usePacket(role, f)
	case Raw4, Raw6:
		return s.useRaw(role, f)
	case SYN4, SYN6:
		return s.useSYN(role, f)
	case Brokers:
		return s.useBrokers(f)
	}
	l, err := net.FileListener(f)
	if err != nil {
		return err
	}
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return errors.New("not a TCP listener")
	}
	go s.serveTCP(tcp)
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
