# One file by a symbolic link, a relative path and a descriptor of its directory.
import os
os.makedirs("real/dir")
open("real/dir/file", "w").close()
os.symlink("real/dir", "link")
top = os.open("real", os.O_PATH)
os.close(os.open("link/../dir/file", os.O_RDONLY))
os.close(os.open("dir/./file", os.O_WRONLY, dir_fd=top))
os.chdir("link")
os.unlink("file")
