# Processes that share one CPU and are preempted inside each other's system calls.
import os
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
for p in range(4):
    if os.fork() == 0:
        for i in range(1000):
            os.mkdir("/tmp/p%d-%d" % (p, i))
        os._exit(0)
for p in range(4):
    os.wait()
