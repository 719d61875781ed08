# A program that is an argument of the dynamic loader.
import glob, os, shutil
shutil.copy("/bin/true", "hidden")
os.execv(glob.glob("/lib64/ld-linux*")[0] if glob.glob("/lib64/ld-linux*") else glob.glob("/lib/ld-linux*")[0], ["ld.so", "./hidden"])
