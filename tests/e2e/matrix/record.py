"""Records what the published clients send: python -m matrix.record, in tests/e2e, with CUBICLE_BUILD as for the tests.

Each client of SCENARIOS plays its scenario through a proxy to a server of its own; what it sent becomes tests/protocol/recorded/CLIENT.jsonl,
one request a line as it was on the wire (bytes as the characters of the same number), with the status of our answer and the process id that
it names. Key, sandbox id and token become {key}, {id} and {token}; the tests of tests/protocol replay them."""

import json
import os
import re
import socket
import subprocess
import threading

from server import ROOT, Server

from .clients import CLIENTS, MATRIX

SCENARIOS = {"npm-2.21": "js", "npm-2.45": "js", "npm-2.51": "js", "pypi-2.45": "e2b", "pypi-2.63": "e2b", "cube": "cube"}
OUT = ROOT / "tests/protocol/recorded"


class Proxy:
    """Passes bytes on and keeps them: exchanges is [(time order, request, status)]."""

    def __init__(self, port):
        self.target = port
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        self.connections = []
        self.order = 0
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            server = socket.create_connection(("127.0.0.1", self.target))
            record = {"sent": [], "got": b""}
            self.connections.append(record)
            for source, to, sent in ((client, server, True), (server, client, False)):
                threading.Thread(target=self.pump, args=(source, to, record, sent), daemon=True).start()

    def pump(self, source, to, record, sent):
        try:
            while data := source.recv(65536):
                if sent:
                    self.order += 1
                    record["sent"].append((self.order, data))
                else:
                    record["got"] += data
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def exchanges(self):
        found = []
        for c in self.connections:
            data = b"".join(d for _, d in c["sent"])
            at = answer = 0
            while at < len(data) and answer < len(c["got"]):
                end = message_end(data, at)
                found.append((order_at(c["sent"], at), data[at:end], int(c["got"][answer + 9:answer + 12])))
                at, answer = end, message_end(c["got"], answer)
        return sorted(found)


def order_at(sent, at):
    for order, data in sent:
        if at < len(data):
            return order
        at -= len(data)
    raise AssertionError("an answer without a request")


def message_end(data, at):
    """Where the request or the answer that begins there ends; the end of the data when it was cut."""
    end = data.index(b"\r\n\r\n", at) + 4
    head = data[at:end].lower()
    length = re.search(rb"\r\ncontent-length: (\d+)", head)
    if length:
        return end + int(length[1])
    if b"\r\ntransfer-encoding: chunked" in head:
        while b"\r\n" in data[end:]:
            line = data.index(b"\r\n", end)
            size = int(data[end:line].split(b";")[0], 16)
            end = line + 2 + size + 2
            if size == 0:
                return end
        return len(data)
    return end


def record(client, kind):
    server = Server().start()
    proxy = Proxy(server.port)
    try:
        env = {**os.environ, **server.env(), "CUBE_API_KEY": server.api_key, "CUBE_PROXY_NODE_IP": "127.0.0.1"}
        env.update(E2B_API_URL=f"http://127.0.0.1:{proxy.port}", E2B_SANDBOX_URL=f"http://127.0.0.1:{proxy.port}",
                   CUBE_API_URL=f"http://127.0.0.1:{proxy.port}", CUBE_PROXY_PORT_HTTP=str(proxy.port))
        if kind == "js":
            code = f"import * as sdk from '{client.package}'; import {{ play }} from '{MATRIX.as_uri()}/scenario.mjs'; await play(sdk)"
            words = ["node", "--input-type=module", "-e", code]
        else:
            words = [client.environment / "bin/python", MATRIX / "scenario.py", kind]
        subprocess.run(words, cwd=client.environment, env=env, check=True, timeout=120)
        exchanges = proxy.exchanges()
        key = server.api_key
    finally:
        server.destroy()
    with open(OUT / f"{client.id}.jsonl", "w") as f:
        for _, request, status in exchanges:
            text = anonymous(request.decode("latin-1"), key, proxy.port)
            pid = re.search(r'"pid": ?(\d+)', text)
            f.write(json.dumps({"status": status, **({"pid": int(pid[1])} if pid else {}), "request": text}) + "\n")


def anonymous(text, key, port):
    text = text.replace(key, "{key}").replace(f"127.0.0.1:{port}", "127.0.0.1:3000")
    text = re.sub(r"\bi[a-z0-9]{20}\b", "{id}", text)
    text = re.sub(r"\bsnap-[a-z0-9]{20}\b", "{snapshot}", text)
    return re.sub(r"(?i)(x-access-token: )[^\r]+", r"\1{token}", text)


def main():
    OUT.mkdir(exist_ok=True)
    for client in CLIENTS:
        if client.id in SCENARIOS:
            record(client, SCENARIOS[client.id])


if __name__ == "__main__":
    main()
