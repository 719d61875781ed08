# Names that appear and change places without an open or a plain rename.
import ctypes, os
libc = ctypes.CDLL(None)
fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600)
libc.linkat(-100, b"/proc/self/fd/%d" % fd, -100, b"appeared", 0x400)
for name in ("left", "right"):
    open(name, "w").close()
libc.renameat2(-100, b"left", -100, b"right", 2)
