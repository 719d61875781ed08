# Content that goes into a file without write(2).
import os
open("from", "wb").write(b"x" * 100000)
src, a, b = os.open("from", os.O_RDONLY), os.open("a", os.O_CREAT | os.O_WRONLY), os.open("b", os.O_CREAT | os.O_WRONLY)
print(os.copy_file_range(src, a, 100000, 0) + os.sendfile(b, src, 0, 100000))
