# A program that is in no file system.
import os
fd = os.memfd_create("kworker", 0)
os.write(fd, open("/bin/true", "rb").read())
os.execve(fd, ["kworker", "AGMARK"], {})
