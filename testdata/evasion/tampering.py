# The tools of a debugger, of the kernel and of whoever wants the record to end.
import ctypes, os
libc = ctypes.CDLL(None)
for nr in (101, 311, 310, 321, 298, 320, 313, 169):  # ptrace, process_vm_*, bpf, perf_event_open, kexec_file_load, finit_module, reboot
    libc.syscall(nr, 0, 0, 0, 0, 0, 0)
try:
    open("/proc/1/mem", "rb")
except OSError:
    pass
try:
    os.kill(1, 9)
except OSError:
    pass
