# Programs that are text.
import subprocess, sys
subprocess.call(["sh", "-c", "true && : AGMARK-sh"])
subprocess.call([sys.executable, "-c", "pass # AGMARK-py"])
