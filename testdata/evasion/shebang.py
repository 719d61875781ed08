# A script whose interpreter is a script.
import os, subprocess
open("inner", "w").write("#!/bin/sh\nexit 0\n")
open("outer", "w").write("#!%s/inner arg\n" % os.getcwd())
os.chmod("inner", 0o755)
os.chmod("outer", 0o755)
subprocess.call(["./outer", "x"])
