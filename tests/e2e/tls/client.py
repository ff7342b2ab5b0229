"""The published Python client with E2B_DOMAIN alone, over TLS (run by test_tls.py in a mount namespace with names of its own)."""

import json
import pathlib
import sys
import time
import urllib.error
import urllib.request

from e2b import Sandbox

SERVICE = pathlib.Path(sys.argv[1]).read_text()


def fetch(url, data=None, headers=None):
    return urllib.request.urlopen(urllib.request.Request(url, data, headers or {}), timeout=60)


def fetch_when_ready(url):
    deadline = time.monotonic() + 30
    while True:
        try:
            return fetch(url)
        except urllib.error.HTTPError as e:
            assert e.code == 502 and time.monotonic() < deadline
            time.sleep(0.1)


with Sandbox.create("base", timeout=300, secure=True) as box:
    assert box.commands.run("echo hi").stdout == "hi\n"
    box.files.write("/home/user/a", "x" * 3_000_000)
    assert box.files.read("/home/user/a") == "x" * 3_000_000

    # Signed URLs are plain HTTPS: nothing but the URL is needed.
    url = box.download_url("/home/user/a", use_signature_expiration=60)
    assert url.startswith("https://49983-"), url
    assert fetch(url).read() == b"x" * 3_000_000
    url = box.upload_url("/home/user/b", use_signature_expiration=60)
    body = b'--xx\r\nContent-Disposition: form-data; name="file"; filename="b"\r\n\r\nsigned\r\n--xx--\r\n'
    assert fetch(url, body, {"Content-Type": "multipart/form-data; boundary=xx"}).status == 200
    assert box.files.read("/home/user/b") == "signed"

    # A service inside, by the name that get_host() gives.
    box.files.write("/home/user/service.py", SERVICE)
    box.commands.run("python3 /home/user/service.py", background=True, timeout=0)
    base = "https://" + box.get_host(3001)
    told = fetch_when_ready(base + "/hello").read().decode().lower()
    assert f"host: {box.get_host(3001)}" in told and "x-forwarded-proto: https" in told, told
    stream = fetch(base + "/steps")
    assert stream.readline() == b"one\n"
    box.commands.run("touch /tmp/go")
    assert stream.read() == b"two\n"

    # Output comes while the command runs.
    seen = []
    command = box.commands.run("echo first; while ! [ -e /tmp/more ]; do sleep 0.05; done; echo second", background=True)
    for out, _, _ in command:
        seen.append(out)
        if out == "first\n":
            box.files.write("/tmp/more", "")
    assert "".join(seen) == "first\nsecond\n"
    print(json.dumps({"id": box.sandbox_id, "host": box.get_host(3001), "domain": box.sandbox_domain}))
