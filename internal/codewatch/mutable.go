package codewatch

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Of an ELF file's header and segments (elf(5), include/uapi/linux/elf.h).
const (
	elfHeader = 64 // bytes, those of 32-bit ones among them
	ptLoad    = 1
	ptStack   = 0x6474e551 // PT_GNU_STACK
	pfX, pfW  = 1, 2
	maxPhdrs  = 64 << 10 // bytes that the kernel takes (fs/binfmt_elf.c, load_elf_phdrs)
)

// mutable reports whether an ELF image has itself given memory that can be written and
// executed, by no call that could be recorded: a segment or a stack of that kind; memory
// without a file behind a segment that is executed, which is always writable (fs/binfmt_elf.c,
// elf_load); or as a 32-bit one that says nothing of its stack, for which all that can
// be read can be executed, whatever it maps later (arch/x86/include/asm/elf.h, elf_read_implies_exec).
func mutable(fd int) bool {
	var head [elfHeader]byte
	n, _ := unix.Pread(fd, head[:], 0)
	if n < elfHeader || string(head[:4]) != "\x7fELF" {
		return false
	}
	le, is64 := binary.LittleEndian, head[4] == 2
	size, at, count := 32, int64(le.Uint32(head[28:])), int(le.Uint16(head[44:]))
	if is64 {
		size, at, count = 56, int64(le.Uint64(head[32:])), int(le.Uint16(head[56:]))
	}
	if size*count > maxPhdrs || at < 0 {
		return false // not to be executed
	}
	table := make([]byte, size*count)
	if n, err := unix.Pread(fd, table, at); err != nil || n != len(table) {
		return false
	}
	stack := is64
	for ; len(table) > 0; table = table[size:] {
		flags, file, mem := le.Uint32(table[24:]), uint64(le.Uint32(table[16:])), uint64(le.Uint32(table[20:]))
		if is64 {
			flags, file, mem = le.Uint32(table[4:]), le.Uint64(table[32:]), le.Uint64(table[40:])
		}
		switch kind := le.Uint32(table); {
		case flags&pfX == 0 && kind != ptStack:
		case kind == ptLoad && (flags&pfW != 0 || mem > file), kind == ptStack && flags&pfX != 0:
			return true
		case kind == ptStack:
			stack = true
		}
	}
	return !stack
}
