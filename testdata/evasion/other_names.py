# A program under another name: by /proc, as a copy, as a hard link, renamed.
import os, shutil, subprocess
subprocess.call(["/proc/self/root/usr/bin/id", "-u"], stdout=subprocess.DEVNULL)
shutil.copy("/usr/bin/id", "git")
os.link("git", "make")
os.rename("git", "ls")
print(os.stat("ls").st_ino)
for name in ("./ls", "./make"):
    subprocess.call([name], stdout=subprocess.DEVNULL)
