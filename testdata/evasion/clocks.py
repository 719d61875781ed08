# Another time.
import ctypes
libc = ctypes.CDLL(None)
libc.clock_settime(0, ctypes.create_string_buffer(16))
libc.unshare(0x80)
