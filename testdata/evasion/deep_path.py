# A path that is longer than any argument may be.
import os
for i in range(30):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
open("bottom", "w").close()
os.unlink("bottom")
for i in range(30):
    os.chdir("..")
    os.rmdir("d" * 200)
