"""Runs inside a sandbox: a small web service for the tests of TLS, one port, standard library only.

/hello       tells what it was asked
/steps       one line, then another one when the file /tmp/go appears: a stream that is not buffered shows the first before
/socket      a WebSocket that returns each text message reversed
"""

import asyncio
import base64
import hashlib
import os
import struct


async def steps(writer):
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none\n\r\n")
    await writer.drain()
    while not os.path.exists("/tmp/go"):
        await asyncio.sleep(0.05)
    writer.write(b"4\r\ntwo\n\r\n0\r\n\r\n")


async def web_socket(reader, writer, head):
    key = next(line.split(b":", 1)[1].strip() for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key:"))
    accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n")
    while True:
        first, size = await reader.readexactly(2)
        size &= 127
        if size == 126:
            size, = struct.unpack("!H", await reader.readexactly(2))
        elif size == 127:
            size, = struct.unpack("!Q", await reader.readexactly(8))
        mask, data = await reader.readexactly(4), await reader.readexactly(size)
        data = bytes(b ^ mask[i % 4] for i, b in enumerate(data))
        close = first & 15 == 8
        data = data if close else data[::-1]
        length = bytes([len(data)]) if len(data) < 126 else b"\x7e" + struct.pack("!H", len(data)) if len(data) < 65536 else b"\x7f" + struct.pack("!Q", len(data))
        writer.write(bytes([first]) + length + data)
        await writer.drain()
        if close:
            return


async def serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split(b" ")[1]
            if path == b"/socket":
                await web_socket(reader, writer, head)
                break
            if path == b"/steps":
                await steps(writer)
            else:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(head) + head)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    writer.close()


async def main():
    await asyncio.start_server(serve, "127.0.0.1", 3001)
    await asyncio.Event().wait()

asyncio.run(main())
