"""A domain whose every name is this machine, for clients that a test starts: a resolver of its own on a loopback address, named in a resolv.conf that only they see.

Nothing of the machine's own configuration changes: the client runs in a mount namespace of its own."""

import random
import socket
import struct
import tempfile
import threading


class Names:
    def __init__(self, domain):
        self.suffix = b"".join(bytes([len(p)]) + p for p in domain.encode().split(b".")) + b"\0"
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.address = f"127.{random.randrange(64, 128)}.{random.randrange(256)}.{random.randrange(1, 255)}"
        self.socket.bind((self.address, 53))
        self.files = [tempfile.NamedTemporaryFile("w", prefix="cubicle-names-") for _ in range(2)]
        for f, text in zip(self.files, (f"nameserver {self.address}\n", "passwd: files\ngroup: files\nhosts: files dns\n")):
            f.write(text)
            f.flush()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                query, peer = self.socket.recvfrom(4096)
            except OSError:
                return
            self.socket.sendto(self._answer(query), peer)

    def _answer(self, query):
        end = 12
        while query[end]:
            end += query[end] + 1
        name, (kind, _) = query[12:end + 1], struct.unpack("!HH", query[end + 1:end + 5])
        ours = name.lower().endswith(self.suffix)
        found = ours and kind == 1
        # An answer with authority; NXDOMAIN for what is not ours, nothing for other types.
        flags = 0x8580 | (0 if ours else 3)
        head = query[:2] + struct.pack("!HHHHH", flags, 1, found, 0, 0)
        record = b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 5, 4) + socket.inet_aton("127.0.0.1") if found else b""
        return head + query[12:end + 5] + record

    def command(self, *argv):
        """What runs argv with these names."""
        script = 'mount --make-rprivate / && mount --bind "$1" /etc/resolv.conf && mount --bind "$2" /etc/nsswitch.conf && shift 2 && exec "$@"'
        return ["unshare", "-m", "sh", "-c", script, "sh", *(f.name for f in self.files), *map(str, argv)]

    def close(self):
        self.socket.close()
        for f in self.files:
            f.close()
