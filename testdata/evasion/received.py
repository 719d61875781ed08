# A file that one process opens and another reads.
import os, socket
open("secret", "w").write("s")
here, there = socket.socketpair()
if os.fork() == 0:
    socket.send_fds(there, [b"x"], [os.open("secret", os.O_RDONLY)])
    os._exit(0)
fd = socket.recv_fds(here, 1, 1)[1][0]
print(fd, os.fstat(fd).st_ino)
