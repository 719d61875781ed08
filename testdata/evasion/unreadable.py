# A path that cannot be read, as a page that userfaultfd holds back could not, and userfaultfd itself.
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall(257, -100, ctypes.c_void_p(4096), 0)
libc.syscall(323, 0)
