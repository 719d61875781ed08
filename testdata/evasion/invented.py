# A seccomp filter of the command's own answers calls that are then not made, with success and with a refusal.
import ctypes, os, platform, struct, subprocess
numbers = {"x86_64": {"unlink": [87, 263], "chmod": [90, 268]}, "aarch64": {"unlink": [35], "chmod": [53]}}[platform.machine()]
for name in ("gone", "kept", "shown"):
    open(name, "w").close()
os.unlink("gone")
code = [(0x20, 0, 0, 0)]  # the number of the call
for name, errno in (("unlink", 0), ("chmod", 1)):
    for n in numbers[name]:
        code += [(0x15, 0, 1, n), (0x06, 0, 0, 0x00050000 | errno)]  # SECCOMP_RET_ERRNO
code += [(0x06, 0, 0, 0x7FFF0000)]  # SECCOMP_RET_ALLOW
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *c) for c in code))
prog = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code), ctypes.addressof(program)))
if ctypes.CDLL(None, use_errno=True).prctl(22, 2, prog, 0, 0, 0) != 0:  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
    raise OSError(ctypes.get_errno(), "prctl")
os.unlink("kept")
try:
    os.chmod("shown", 0o600)
    print("chmod was made")
except PermissionError:
    pass
for _ in range(3):
    try:
        open("missing")
    except FileNotFoundError:
        pass
os.mkdir("made")
subprocess.run(["rm", "-f", "shown"])
print(" ".join(sorted(os.listdir("."))))
