# Ways out that are no connect(2) of a TCP socket.
import socket
def attempt(f):
    try:
        f()
    except OSError:
        pass
attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 53)))
attempt(lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).sendto(b"x", ("::ffff:192.0.2.2", 53)))
attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM).sendto(b"x", 0x20000000, ("192.0.2.3", 443)))
attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262).connect(("192.0.2.4", 443)))
for family, kind, proto in ((socket.AF_INET, socket.SOCK_RAW, 1), (socket.AF_PACKET, socket.SOCK_RAW, 0), (40, socket.SOCK_STREAM, 0), (socket.AF_NETLINK, socket.SOCK_RAW, 12)):
    attempt(lambda: socket.socket(family, kind, proto))
