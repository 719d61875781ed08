# A program that somebody has mapped to write to it while it is executed, in a copy-on-write tree. What is
# written by a mapping that was written to before leaves no trace. Elsewhere the kernel executes none such.
import ctypes, os, shutil, subprocess
libc = ctypes.CDLL(None)
libc.mmap.restype, libc.munmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t]

def mapped(name, again=False):
    if not again:
        shutil.copy("/bin/true", name)
    fd = os.open(name, os.O_RDWR)
    at = libc.mmap(None, 4096, 3, 1, fd, 0) # PROT_READ | PROT_WRITE, MAP_SHARED
    os.close(fd)
    if not again:
        ctypes.memset(at + 8, 0, 1) # padding of e_ident
    return at

mapped("held")
subprocess.run(["./held"], check=True)

libc.munmap(mapped("free"), 4096)
subprocess.run(["./free"], check=True)

shutil.copy("/bin/true", "again")
subprocess.run(["./again"], check=True)
mapped("again", again=True) # the version whose digest is known; it is written to when it runs
subprocess.run(["./again"], check=True)

os.mkdir("dir")
mapped("dir/moved")
os.rename("dir", "new")
subprocess.run(["new/moved"], check=True)

mapped("gone")
fd = os.open("gone", os.O_RDONLY)
os.unlink("gone")
subprocess.run(["/proc/self/fd/%d" % fd], pass_fds=[fd], check=True)
