# A program whose file is gone when it runs.
import os, shutil
shutil.copy("/bin/true", "prog")
fd = os.open("prog", os.O_RDONLY)
os.unlink("prog")
os.execve(fd, ["true"], {})
