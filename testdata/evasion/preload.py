# Code that the environment brings along.
import os, shutil, glob
lib = os.path.realpath(glob.glob("/lib/*/libm.so.6")[0])
shutil.copy(lib, "helper.so")
os.execve("/bin/true", ["true"], {"LD_PRELOAD": os.path.abspath("helper.so"), "AGTOKEN": "AGSECRET"})
