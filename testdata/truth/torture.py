# Processes and files in many ways, the same each time: see cmd/agentguard's ground truth test.
# Arguments: the directory to work in, and how often what is done often is done.
import ctypes, os, signal, socket, subprocess, sys, threading

os.chdir(sys.argv[1])
often = int(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)


def child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(3)
    return os.waitpid(pid, 0)[1]


def grandchild():  # outlives its parent for a moment and belongs to init then
    def orphan():
        os.setsid()
        os.read(ready, 1)
        os.close(os.open("orphan", os.O_CREAT | os.O_WRONLY))
        os.kill(os.getpid(), signal.SIGUSR1)
    ready, go = os.pipe()
    if os.fork() == 0:
        os.close(go)
        orphan()
    os.write(go, b"x")


# Names: relative, absolute, by a directory's descriptor, of what is not there.
os.mkdir("d")
top = os.open("d", os.O_RDONLY)
for i in range(40):
    with open("d/f%d" % i, "w") as f:
        f.write("x")
for i in range(0, 40, 2):
    os.rename("d/f%d" % i, os.path.abspath("d/g%d" % i))
os.rename("f1", "h1", src_dir_fd=top, dst_dir_fd=top)
os.link("d/h1", "d/hard")
os.symlink("h1", "d/soft")
os.close(os.open("d/soft", os.O_RDWR))
os.close(os.open("soft", os.O_WRONLY | os.O_APPEND, dir_fd=top))
os.unlink("hard", dir_fd=top)
for name in ("d/none", "none/x"):
    try:
        os.unlink(name)
    except FileNotFoundError:
        pass
os.unlink("d/soft")
os.makedirs("a/b/c")
os.removedirs("a/b/c")
for i in range(5 * often):  # the same file again and again, and many at a time
    os.close(os.open("d/f3", os.O_WRONLY))
    os.close(os.open("d/f%d" % (i % 10 * 2 + 5), os.O_RDWR))
for i in range(3):
    child(lambda: os.unlink("d/f%d" % (5 + 2 * i)))

# Processes: fork, vfork and exec, two forks, threads, signals, a program that is not there.
assert child(lambda: os._exit(7)) == 7 << 8
assert child(lambda: os.kill(os.getpid(), signal.SIGKILL)) == 9
child(grandchild)
for args in (["/bin/true"], ["/bin/false"], ["sh", "-c", "exit 5"], ["sh", "-c", "true | cat; exec /bin/true"], ["./script.sh", "x"]):
    subprocess.call(args)
try:
    subprocess.call(["/no/such/program"])
except FileNotFoundError:
    pass
threads = [threading.Thread(target=lambda i=i: os.close(os.open("d/t%d" % i, os.O_CREAT | os.O_WRONLY))) for i in range(8)]
for t in threads:
    t.start()
for t in threads:
    t.join()

# Connections: to nobody, by TCP and UDP.
for family, kind, host in ((socket.AF_INET, socket.SOCK_STREAM, "127.0.0.1"), (socket.AF_INET6, socket.SOCK_STREAM, "::1"), (socket.AF_INET, socket.SOCK_DGRAM, "127.0.0.1")):
    with socket.socket(family, kind) as s:
        s.connect_ex((host, 9))

# A flood of processes at the end.
for i in range(often):
    child(lambda: os.execv("/bin/true", ["true", str(i)]))
