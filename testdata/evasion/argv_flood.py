# Arguments that are long, and so many that the last is out of sight.
import subprocess
subprocess.call(["/bin/true", "x" * 100000 + "AGMARK"])
subprocess.call(["/bin/true"] + ["y" * 1000] * 1500 + ["AGLAST"])
