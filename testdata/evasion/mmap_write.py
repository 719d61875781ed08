# Content that goes into a file by a mapping.
import mmap, os
open("mapped", "wb").write(b"before")
fd = os.open("mapped", os.O_RDWR)
m = mmap.mmap(fd, 6)
os.close(fd)
m[:] = b"after!"
