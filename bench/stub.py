"""Answers what an SDK sends for create, run_code and kill at once with constant bytes: what is left of its time is the SDK's own. Prints its port; ends with its standard input."""

import asyncio
import json
import sys

BOX = {"sandboxID": "i0123456789abcdefghij", "templateID": "nue6gwtm849hihvqm1n5", "alias": "code-interpreter-v1", "clientID": "cubicle", "envdVersion": "0.6.2",
       "envdAccessToken": "t" * 64, "launch": "warm"}
CELL = b"".join(json.dumps(line).encode() + b"\n" for line in (
    {"type": "number_of_executions", "execution_count": 1}, {"type": "result", "is_main_result": True, "text": "2"}, {"type": "end_of_execution"}))


def answer(status, kind, body):
    return b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s" % (status, kind, len(body), body)


CREATED = answer(b"201 Created", b"application/json", json.dumps(BOX).encode())
EXECUTED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(CELL), CELL)
KILLED = b"HTTP/1.1 204 No Content\r\n\r\n"
UNKNOWN = answer(b"404 Not Found", b"application/json", b'{"code":404,"message":"the stub does not know this"}')


def reply(line):
    if line.startswith(b"POST /execute"):
        return EXECUTED
    if line.startswith((b"POST /sandboxes ", b"POST /v2/sandboxes ")):
        return CREATED
    return KILLED if line.startswith(b"DELETE ") else UNKNOWN


class Peer(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.bytes = transport, b""

    def data_received(self, data):
        self.bytes += data
        while (end := self.request_end()) is not None:
            self.transport.write(reply(self.bytes[:self.bytes.index(b"\r\n")]))
            self.bytes = self.bytes[end:]

    def request_end(self):
        """Where the first whole request ends, or None."""
        head = self.bytes.find(b"\r\n\r\n") + 4
        if head < 4:
            return None
        fields = dict(line.lower().split(b": ", 1) for line in self.bytes[:head - 4].split(b"\r\n")[1:])
        if b"transfer-encoding" in fields:
            last = self.bytes.find(b"0\r\n\r\n", head)
            return None if last < 0 else last + 5
        end = head + int(fields.get(b"content-length", 0))
        return end if len(self.bytes) >= end else None


async def main():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Peer, "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


asyncio.run(main())
