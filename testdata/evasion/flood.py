# A flood of records before, while and after the one that matters.
import os, subprocess
def flood(n):
    for i in range(n):
        try:
            os.open("/nowhere/%d" % i, os.O_RDONLY)
        except OSError:
            pass
flood(20000)
subprocess.call(["/bin/true", "AGNEEDLE"])
flood(20000)
