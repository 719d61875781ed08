# Files and sockets without system calls of their own.
import ctypes
ctypes.CDLL(None).syscall(425, 8, ctypes.create_string_buffer(256))
