//go:build linux && amd64

// Vminit is pid 1 of a test VM. It turns the initramfs into a guest that looks like a Debian host with pure cgroup v2,
// whose root is the real host's (read-only by virtiofs, written to a tmpfs), runs one command and powers off.
//
// Protocol with vmrun.sh:
//
//	/vmrun      in the initramfs: what to run (spec.go)
//	ttyS1       the command's stdout and stderr, raw bytes
//	ttyS0       the kernel's messages and ours; the last line is "VMEXIT n", n the command's status. Without that
//	            line the VM did not do its job, whatever qemu's status.
//	port 0xf4   isa-debug-exit: a write of v ends qemu at once with status v<<1|1. v is the low 7 bits of n.
package main

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

const (
	debugExitPort = 0xf4
	exitBroken    = 125 // the guest could not be set up
)

// outb is the x86 instruction; the calling thread needs ioperm for the port.
func outb(port uint16, value byte)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "vminit: only of use as pid 1 of a test VM")
		os.Exit(exitBroken)
	}
	status, err := boot()
	if err != nil {
		fmt.Printf("vminit: %v\n", err)
		status = exitBroken
	}
	powerOff(status)
}

// boot sets the guest up and runs the command. Its error means that the command was not run.
func boot() (int, error) {
	if err := mountAll("/", earlyMounts); err != nil {
		return 0, err
	}
	// The kernel opened stdio on the console before there was a /dev here: nothing to do for ttyS0.
	out, err := openOutput("/dev/ttyS1")
	if err != nil {
		return 0, err
	}
	src, err := os.ReadFile("/vmrun")
	if err != nil {
		return 0, err
	}
	s, err := parseSpec(src)
	if err != nil {
		return 0, fmt.Errorf("/vmrun: %w", err)
	}
	if err := loadModules("/modules"); err != nil {
		return 0, err
	}
	if err := enterHostRoot(s.Share); err != nil {
		return 0, err
	}
	if err := loopbackUp(); err != nil {
		return 0, err
	}
	if err := unix.Sethostname([]byte("agentguard-vm")); err != nil {
		return 0, fmt.Errorf("hostname: %w", err)
	}
	status := runCommand(s, out)
	return status, drain(out)
}

// openOutput opens a serial line raw, so that what the command writes arrives byte for byte.
func openOutput(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	t, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ICANON | unix.ISIG
	if err := unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, t); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// drain waits until the serial line has sent everything (tcdrain(3)).
func drain(f *os.File) error {
	if err := unix.IoctlSetInt(int(f.Fd()), unix.TCSBRK, 1); err != nil {
		return fmt.Errorf("drain %s: %w", f.Name(), err)
	}
	return nil
}

// powerOff reports the status and ends the VM. Where lockdown forbids port access it resets the machine, which ends
// qemu too (-no-reboot), only without a status of its own.
func powerOff(status int) {
	fmt.Printf("\nVMEXIT %d\n", status)
	_ = drain(os.Stdout)
	runtime.LockOSThread() // ioperm is the thread's
	if err := unix.Ioperm(debugExitPort, 1, 1); err == nil {
		outb(debugExitPort, byte(status&0x7f))
	}
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	select {} // pid 1 must not return: the kernel would panic in the middle of the reset
}
