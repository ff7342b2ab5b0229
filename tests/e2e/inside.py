"""Helpers for what goes on inside a sandbox: raw requests to its ports, and what its processes hold."""

import http.client
import json
import urllib.parse

ENVD = 49983


def ask(server, box, method, target, body=None, headers=None, port=ENVD, token=True, chunked=False):
    """One request as it is, routed by Host: (status, headers, body)."""
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    h = {"Host": f"{port}-{box.sandbox_id}.sbx.test", **(headers or {})}
    if token and port == ENVD:
        h["X-Access-Token"] = box._envd_access_token
    try:
        c.request(method, target, body, h, encode_chunked=chunked)
        r = c.getresponse()
        return r.status, r.headers, r.read()
    finally:
        c.close()


def file_target(path, **query):
    return "/files?" + urllib.parse.urlencode({"path": path, **query})


def get(server, box, path, headers=None, **query):
    return ask(server, box, "GET", file_target(path, **query), headers=headers)


def put(server, box, path, data, headers=None, **query):
    return ask(server, box, "POST", file_target(path, **query), data, {"Content-Type": "application/octet-stream", **(headers or {})})


def rpc(server, box, method, message, service="filesystem.Filesystem"):
    """A unary call: (status, answer)."""
    status, _, body = ask(server, box, "POST", f"/{service}/{method}", json.dumps(message), {"Content-Type": "application/json"})
    return status, json.loads(body)


def kept(box):
    """(processes but the ones that count, inotify instances, KiB of memory of PID 1's own: not the pages of its program that happen to be mapped), as root inside."""
    text = box.commands.run(
        "ps -eo comm= | awk '$1 !~ /^(ps|awk|bash|sh|find)$/ {n++} END {print n}'; awk '/^RssAnon:/ {print $2}' /proc/1/status;"
        "find /proc/[0-9]*/fd -lname 'anon_inode:inotify' 2>/dev/null | wc -l", user="root").stdout.split()
    return int(text[0]), int(text[2]), int(text[1])
