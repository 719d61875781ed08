# Processes that are gone before anybody could look at them.
import os
for i in range(300):
    if os.fork() == 0:
        os._exit(i % 7)
    os.wait()
