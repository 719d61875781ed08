# Code in memory that no call makes executable, or after the call: a program whose own header asks for memory
# that can be written and executed, a private mapping of a file that can be, and shared memory.
import ctypes, os, struct, subprocess
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p

def program(name, flags, stack):
    code = b"\xb8\x3c\0\0\0\x31\xff\x0f\x05" # exit(0)
    heads = [(1, flags, 0, 0x400000, 0x400000, 0x1000, 0x1000, 0x1000), (0x6474e551, stack, 0, 0, 0, 0, 0, 16)]
    start = 64 + 56 * len(heads)
    elf = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 0x400000 + start, 64, 0, 0, 64, 56, len(heads), 0, 0, 0)
    elf += b"".join(struct.pack("<IIQQQQQQ", *h) for h in heads) + code
    with open(name, "wb") as f:
        f.write(elf.ljust(0x1000, b"\0"))
    os.chmod(name, 0o755)
    subprocess.run(["./" + name], check=True)

program("plain", 5, 6)
program("segment", 7, 6)
program("stack", 5, 7)

fd = os.open("plain", os.O_RDONLY)
assert libc.mmap(None, 4096, 5, 2, fd, 0) != 2**64 - 1 # PROT_READ | PROT_EXEC, MAP_PRIVATE
at = libc.mmap(None, 4096, 7, 2, fd, 0)
ctypes.memset(at, 0xc3, 1)
ctypes.CFUNCTYPE(None)(at)()

memory = libc.shmget(0, 4096, 0o1700) # IPC_CREAT
assert libc.shmat(memory, None, 0o100000) == -1 # SHM_EXEC
