"""Runs in a sandbox: HTTP and WebSockets on one port, with the standard library alone. argv: port, where redirects elsewhere lead to."""

import base64
import hashlib
import http.server
import struct
import sys
import time

ELSEWHERE = sys.argv[2]


class Service(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def body_parts(self):
        """The body as it comes."""
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline().split(b";")[0], 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            left = int(self.headers.get("Content-Length") or 0)
            while left:
                data = self.rfile.read1(min(left, 65536))
                left -= len(data)
                yield data

    def answer(self):
        path = self.path.split("?")[0]
        if path == "/headers":
            self.reply(200, str(self.headers).encode())
        elif path == "/elsewhere":
            list(self.body_parts())
            self.reply(307, Location=ELSEWHERE)
        elif path == "/here":
            self.reply(302, Location="/headers?x=1")
        elif path == "/two-places":
            self.send_response(302)
            self.send_header("Location", "/headers")
            self.send_header("Location", ELSEWHERE)
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif path == "/hash":
            digest = hashlib.sha256()
            for part in self.body_parts():
                digest.update(part)
            self.reply(200, digest.hexdigest().encode())
        elif path == "/echo-as-it-comes":
            # Each part of the body is answered before the next one is read.
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for part in self.body_parts():
                self.chunk(b"got " + part)
            self.wfile.write(b"0\r\n\r\n")
        elif path == "/events":
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                for i in range(10000):
                    self.chunk(b"data: %d\n\n" % i)
                    time.sleep(0.5)
            except OSError:
                open("/tmp/events-ended", "w").close()
            self.close_connection = True
        elif path == "/big":
            self.send_response(200)
            self.send_header("Content-Length", str(64 << 20))
            self.end_headers()
            for i in range(64):
                self.wfile.write(bytes([i]) * (1 << 20))
        elif path == "/cut":
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"ten bytes.")
            self.close_connection = True
        elif self.headers.get("Upgrade") == "websocket" and path == "/ws":
            self.socket_service()
        elif self.headers.get("Upgrade") == "websocket":
            self.reply(302, Location=ELSEWHERE.replace("http", "ws", 1))
        else:
            self.reply(404, b"nothing here")

    do_GET = do_POST = do_PUT = do_HEAD = do_OPTIONS = answer

    # WebSockets (RFC 6455)

    def send_frame(self, opcode, data):
        n = len(data)
        head = bytes([0x80 | opcode]) + (bytes([n]) if n < 126 else struct.pack(">BH", 126, n) if n < 65536 else struct.pack(">BQ", 127, n))
        self.wfile.write(head + data)

    def read_frame(self):
        first, second = self.rfile.read(2)
        n = second & 127
        if n > 125:
            n = struct.unpack(">H" if n == 126 else ">Q", self.rfile.read(2 if n == 126 else 8))[0]
        mask, data = self.rfile.read(4), self.rfile.read(n)
        key = int.from_bytes((mask * (n // 4 + 1))[:n], "big")
        return bool(first & 0x80), first & 15, (int.from_bytes(data, "big") ^ key).to_bytes(n, "big")

    def socket_service(self):
        accept = base64.b64encode(hashlib.sha1(self.headers["Sec-WebSocket-Key"].encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()).decode()
        self.send_response(101)
        for name, value in (("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", accept)):
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True
        message, kind = b"", 1
        while True:
            last, opcode, data = self.read_frame()
            if opcode == 8:
                self.send_frame(8, data)
                return
            if opcode == 9:
                self.send_frame(10, data)
            if opcode in (0, 1, 2):
                kind = opcode or kind
                message += data
                if not last:
                    continue
                if message == b"cut":
                    return
                if message.startswith(b"close "):
                    _, code, reason = message.split(b" ", 2)
                    self.send_frame(8, struct.pack(">H", int(code)) + reason)
                else:
                    self.send_frame(kind, message)
                message = b""


server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Service)
server.serve_forever()
