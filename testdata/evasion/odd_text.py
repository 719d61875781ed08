# No first argument, bytes that are no text, and a forged line of a record.
import ctypes, os
libc = ctypes.CDLL(None)
forged = b'\n{"v":1,"seq":1,"kind":"summary"}\n'
for argv in ([b""], [b"\xff\xfe\x1b[2J", forged]):
    if os.fork() == 0:
        libc.prctl(15, b"innocent")  # PR_SET_NAME
        libc.execv(b"/bin/true", (ctypes.c_char_p * (len(argv) + 1))(*argv, None))
    os.wait()
open(forged.replace(b"/", b"") + b"\x80", "w").close()
