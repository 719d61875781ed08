//go:build linux

package initproc

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// sealedMemfd returns a memfd with the content, sealed against every change.
func sealedMemfd(name string, content []byte, flags int) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|flags)
	if err == unix.EINVAL && flags != 0 { // MFD_EXEC is not known before 6.3, nor needed
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.Write(content); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	const seals = unix.F_SEAL_WRITE | unix.F_SEAL_GROW | unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return nil, errors.Join(os.NewSyscallError("fcntl F_ADD_SEALS", err), f.Close())
	}
	return f, nil
}

// openProgram returns the init program as an executable descriptor above
// execBase.
func openProgram(fallback string) (*os.File, error) {
	f, err := sealedMemfd("agentguard-init", program, unix.MFD_EXEC)
	if errors.Is(err, unix.EACCES) && fallback != "" {
		f, err = writeProgram(fallback)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, execBase)
	if err == unix.EINVAL { // of a number beyond RLIMIT_NOFILE (fcntl(2)); the other call that has it says this
		err = unix.EMFILE
	}
	if err != nil {
		return nil, os.NewSyscallError("fcntl F_DUPFD_CLOEXEC", err)
	}
	return os.NewFile(uintptr(fd), "agentguard-init"), nil
}

// writeProgram keeps the init program in a file of root's for hosts where
// vm.memfd_noexec forbids memfds. The file has a name of its own for a moment: several runs may
// begin at once in this process, and one that was killed may have left its own.
func writeProgram(path string) (*os.File, error) {
	w, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return nil, err
	}
	_, err = w.Write(program)
	if err = errors.Join(err, w.Chmod(0o500), w.Close()); err != nil {
		return nil, errors.Join(err, os.Remove(w.Name()))
	}
	f, err := os.Open(w.Name())
	return f, errors.Join(err, os.Remove(w.Name()))
}
