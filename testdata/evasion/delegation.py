# Somebody else's sockets, and the files that others execute later.
import os, socket
for path in ("/run/docker.sock", "/run/dbus/system_bus_socket", "\0/tmp/.X11-unix/X0"):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect_ex(path)
os.makedirs(".git/hooks")
open(".git/hooks/post-checkout", "w").write("#!/bin/sh\n")
os.chmod(".git/hooks/post-checkout", 0o755)
