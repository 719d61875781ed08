# Processes that leave their parents: two forks, a session of their own, other namespaces and cgroups.
import ctypes, os
r, w = os.pipe()
os.set_inheritable(w, True) # the last of them to end closes it
def double():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv("/bin/sh", ["sh", "-c", "sleep 0.05; : AGMARK"])
        os._exit(0)
    os.wait()
for i in range(5):
    double()
libc = ctypes.CDLL(None)
libc.unshare(0x20000000)
try:
    open("/sys/fs/cgroup/cgroup.procs", "w").write("0")
except OSError:
    pass
os.close(w)
os.read(r, 1)
