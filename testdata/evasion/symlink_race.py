# A name that means one file when it is looked at and another when it is opened.
import os, threading
for name in ("good", "evil"):
    open(name, "w").close()
os.symlink("good", "name")
done = False
def swap():
    while not done:
        for target in ("evil", "good"):
            os.symlink(target, "next")
            os.rename("next", "name")
t = threading.Thread(target=swap)
t.start()
counts = {}
for i in range(300):
    fd = os.open("name", os.O_RDONLY)
    ino = os.fstat(fd).st_ino
    counts[ino] = counts.get(ino, 0) + 1
done = True
t.join()
for ino, n in counts.items():
    print(ino, n)
