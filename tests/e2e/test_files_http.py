"""/files as browsers and plain HTTP clients use it, through the ingress: signed URLs, coding, ranges, conditions, forms, metadata, pages of other origins (e2b.md B.1 to B.4; field cases 85 to 98)."""

import base64
import email.utils
import gzip
import hashlib
import json
import os
import time
import urllib.parse
import urllib.request
import zlib

import pytest
from e2b import Sandbox

from inside import ask, file_target, get, put
from server import wait_for


@pytest.fixture(scope="module")
def box(server):
    b = Sandbox.create("base", timeout=900)
    yield b
    b.kill()


# ---- signed URLs (case 91) ----

ODD_NAMES = ["plain.txt", "a b", "per%41cent", "a%2Fb", "plus+and&and=and?#", "ü/日本 語", "quo\"te'"]


def fetch(url, data=None, headers=None):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers or {}), timeout=60) as r:
            return r.status, r.headers, r.read()
    except urllib.error.HTTPError as e:
        return e.code, e.headers, e.read()


def upload(box, url, data):
    """As a page does: no header but the content type."""
    return fetch(url, data, {"Content-Type": "application/octet-stream", **routed(box)})


def routed(box):
    """The URL names the server itself; where no name leads to the sandbox the client routes by headers."""
    return {"E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": "49983"}


def changed(url, **query):
    parts = urllib.parse.urlsplit(url)
    values = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
    for key, value in query.items():
        values.pop(key, None) if value is None else values.update({key: value})
    return parts._replace(query=urllib.parse.urlencode(values)).geturl()


@pytest.mark.parametrize("name", ODD_NAMES, ids=range(len(ODD_NAMES)))
def test_091_signed_urls_both_ways(box, name):
    path, data = f"/home/user/signed/{name}", os.urandom(50000)
    for options in ({}, {"user": "user"}, {"use_signature_expiration": 300}, {"user": "root", "use_signature_expiration": 300}):
        status, _, answer = upload(box, box.upload_url(path, **options), data)
        assert (status, json.loads(answer)[0]["path"]) == (200, path), answer
        status, _, body = fetch(box.download_url(path, **options), headers=routed(box))
        assert status == 200 and body == data
        assert box.files.get_info(path).owner == options.get("user", "user")


def test_091_what_was_signed_cannot_be_altered(box):
    box.files.write("/home/user/mine", b"mine")
    box.files.write("/home/user/other", b"other")
    good = box.download_url("/home/user/mine", user="user", use_signature_expiration=300)
    assert fetch(good, headers=routed(box))[0] == 200
    signature = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(good).query))["signature"]
    for url, message in (
        (changed(good, path="/home/user/other"), "invalid signature"),
        (changed(good, path="/home/user/./mine"), "invalid signature"),
        (changed(good, username="root"), "invalid signature"),
        (changed(good, username=None), "invalid signature"),
        (changed(good, signature_expiration=str(int(time.time()) + 99999)), "invalid signature"),
        (changed(good, signature_expiration=None), "invalid signature"),
        (changed(good, signature=signature[:-1]), "invalid signature"),
        (changed(good, signature=""), "invalid signature"),
        (changed(good, signature="v1_" + base64.b64encode(bytes(32)).decode().rstrip("=")), "invalid signature"),
        (changed(good, signature=None), "missing signature query parameter"),
    ):
        status, _, answer = fetch(url, headers=routed(box))
        assert (status, json.loads(answer)) == (401, {"code": 401, "message": message}), url
    # Reading is not writing, and the other way round.
    assert upload(box, good, b"x")[0] == 401
    assert fetch(box.upload_url("/home/user/mine"), headers=routed(box))[0] == 401
    # Only files are reached by it.
    assert fetch(changed(good).replace("/files?", "/envs?"), headers=routed(box))[0] == 401
    assert box.files.read("/home/user/mine") == "mine"
    # A wrong token is told, whatever is signed.
    assert fetch(good, headers={**routed(box), "X-Access-Token": "wrong"})[0] == 401


def signed(box, path, expiration, operation="read"):
    raw = f"{path}:{operation}::{box._envd_access_token}:{expiration}"
    signature = "v1_" + base64.b64encode(hashlib.sha256(raw.encode()).digest()).decode().rstrip("=")
    return file_target(path, signature=signature, signature_expiration=expiration)


def test_091_expiry_of_zero_is_no_never(server, box):
    box.files.write("/home/user/mine", b"mine")
    now = int(time.time())
    for expiration, wanted in ((0, 401), (-1, 401), (now - 1, 401), (now + 600, 200)):
        status, _, answer = ask(server, box, "GET", signed(box, "/home/user/mine", expiration), token=False)
        assert status == wanted, answer
        if wanted == 401:
            assert json.loads(answer) == {"code": 401, "message": "signature is already expired"}
    for expiration in ("", "never", "1e9", "0x7fffffff", "99999999999999999999"):
        assert ask(server, box, "GET", signed(box, "/home/user/mine", expiration), token=False)[0] in (400, 401)


# ---- what a download says of itself ----

def test_092_names_in_headers(server, box):
    for name, wanted in ((b"a\"b.txt", "filename*=UTF-8''a%22b.txt"), ("é.txt".encode(), "filename*=UTF-8''%C3%A9.txt"), (b"a\r\nX-Injected: y", "filename*=UTF-8''a%0D%0AX-Injected%3A%20y"),
                         (b"\xff\xfe.bin", 'filename="__.bin"')):
        target = "/files?path=" + urllib.parse.quote(b"/home/user/" + name)
        assert ask(server, box, "POST", target, b"x", {"Content-Type": "application/octet-stream"})[0] == 200
        status, headers, body = ask(server, box, "GET", target)
        assert (status, body) == (200, b"x") and wanted in headers["Content-Disposition"]
        assert "X-Injected" not in headers and "\r" not in headers["Content-Disposition"]


def test_098_bytes_are_bytes(server, box):
    for data in (b"\x89PNG\r\n\x1a\n\0\0", "caf\xe9".encode("latin-1"), b"PK\x03\x04\r\n\n\r", bytes(range(256)) * 300, b"\xef\xbb\xbfbom", b"\r\n" * 5000):
        assert put(server, box, "/tmp/b.txt", data)[0] == 200
        assert get(server, box, "/tmp/b.txt")[2] == data
        assert gzip.decompress(get(server, box, "/tmp/b.txt", {"Accept-Encoding": "gzip"})[2]) == data


# ---- gzip (case 88) ----

def test_088_gzip_both_ways_and_what_is_none(server, box):
    data = b"compressible " * 100000
    packed = {"Content-Encoding": "gzip"}
    assert put(server, box, "/tmp/z", gzip.compress(data), packed)[0] == 200
    assert box.files.read("/tmp/z", format="bytes") == data
    assert put(server, box, "/tmp/z", gzip.compress(data[:7]) + gzip.compress(data[7:]), packed)[0] == 200
    status, headers, body = get(server, box, "/tmp/z", {"Accept-Encoding": "gzip, deflate"})
    assert (status, headers["Content-Encoding"], headers["Vary"]) == (200, "gzip", "Accept-Encoding")
    assert len(body) < len(data) // 20 and gzip.decompress(body) == data
    for wanted in ("identity", "gzip;q=0", "br", "gzip;q=0.1, identity;q=0.9", ""):
        status, headers, body = get(server, box, "/tmp/z", {"Accept-Encoding": wanted})
        assert status == 200 and "Content-Encoding" not in headers and body == data
    assert get(server, box, "/tmp/z", {"Accept-Encoding": "identity;q=0, br"})[0] == 406
    for bad in (b"not gzip", gzip.compress(data)[:-9], zlib.compress(data), gzip.compress(data) + b"rest", b""):
        assert put(server, box, "/tmp/bad", bad, packed)[0] == 400, bad[:10]
    for coding in ("br", "deflate", "gzip, gzip", "zstd"):
        assert put(server, box, "/tmp/bad", b"x", {"Content-Encoding": coding})[0] == 400


def test_088_a_bomb_ends_at_the_size_of_the_disk(server, own_server):
    s = own_server(options={"sandbox.disk": 128})
    b = Sandbox.create("base", api_key=s.api_key, api_url=s.url, sandbox_url=s.url)
    packer, zeros = zlib.compressobj(9, wbits=31), bytes(1 << 20)
    bomb = b"".join(packer.compress(zeros) for _ in range(1024)) + packer.flush()  # 1 GiB in 1 MB
    status, _, answer = put(s, b, "/home/user/bomb", bomb, {"Content-Encoding": "gzip"})
    assert status == 507, answer
    assert int(b.commands.run("ps -o rss= -p 1", user="root").stdout) < 8 * 1024
    b.files.remove("/home/user/bomb")
    b.files.write("/home/user/small", b"fits")
    b.kill()


# ---- ranges and conditions (RFC 9110) ----

RANGES = [
    ("bytes=0-0", 206, slice(0, 1)), ("bytes=0-", 206, slice(0, 100)), ("bytes=10-19", 206, slice(10, 20)), ("bytes=99-", 206, slice(99, 100)), ("bytes=50-1000", 206, slice(50, 100)),
    ("bytes=0-99999999999999999999999", 206, slice(0, 100)), ("bytes=-1", 206, slice(99, 100)), ("bytes=-100", 206, slice(0, 100)), ("bytes=-1000", 206, slice(0, 100)),
    ("bytes=-99999999999999999999999", 206, slice(0, 100)), ("BYTES=1-2", 206, slice(1, 3)), ("bytes=007-008", 206, slice(7, 9)),
    ("bytes=100-", 416, None), ("bytes=100-200", 416, None), ("bytes=-0", 416, None), ("bytes=99999999999999999999999-", 416, None),
    # Not valid, or more than is served: the whole.
    ("bytes=5-4", 200, slice(0, 100)), ("bytes=", 200, slice(0, 100)), ("bytes=-", 200, slice(0, 100)), ("bytes=a-b", 200, slice(0, 100)), ("bytes=--5", 200, slice(0, 100)),
    ("bytes=0x1-2", 200, slice(0, 100)), ("bytes=1", 200, slice(0, 100)), ("bytes 0-1", 200, slice(0, 100)), ("items=0-1", 200, slice(0, 100)), ("bytes=0-1,5-6", 200, slice(0, 100)),
    ("bytes=+1-2", 200, slice(0, 100)), ("bytes=1 -2", 200, slice(0, 100)), ("", 200, slice(0, 100)),
]


@pytest.mark.parametrize("value, wanted, part", RANGES, ids=[r[0] for r in RANGES])
def test_one_range_is_served(server, box, value, wanted, part):
    data = bytes(range(100))
    put(server, box, "/tmp/r", data)
    status, headers, body = get(server, box, "/tmp/r", {"Range": value, "Accept-Encoding": "gzip"})
    assert status == wanted
    if wanted == 416:
        assert headers["Content-Range"] == "bytes */100" and json.loads(body)["code"] == 416
        return
    assert headers["Accept-Ranges"] == "bytes"
    if wanted == 206:
        assert body == data[part] and headers["Content-Range"] == f"bytes {part.start}-{part.stop - 1}/100" and "Content-Encoding" not in headers
    else:
        assert "Content-Range" not in headers and body == data


def test_ranges_of_other_requests_are_ignored(server, box):
    put(server, box, "/tmp/r", b"0123456789")
    status, headers, _ = ask(server, box, "HEAD", file_target("/tmp/r"), headers={"Range": "bytes=0-1"})
    assert (status, headers["Content-Length"]) == (200, "10")
    put(server, box, "/tmp/empty", b"")
    status, headers, body = get(server, box, "/tmp/empty", {"Range": "bytes=0-"})
    assert (status, headers["Content-Length"], body) == (200, "0", b"")
    # A file without a size that could be known.
    assert get(server, box, "/proc/self/status", {"Range": "bytes=0-4"})[2][:5] == b"Name:"


def http_date(t):
    return email.utils.formatdate(t, usegmt=True)


def test_conditions(server, box):
    put(server, box, "/tmp/c", b"0123456789")
    box.commands.run("touch -d @1600000000 /tmp/c")
    at, before, after = 1600000000, http_date(1599999999), http_date(1600000001)
    same = http_date(at)
    rfc850, asctime = time.strftime("%A, %d-%b-%y %H:%M:%S GMT", time.gmtime(at)), time.strftime("%a %b %e %H:%M:%S %Y", time.gmtime(at))
    assert get(server, box, "/tmp/c")[1]["Last-Modified"] == same
    for headers, wanted in (
        ({"If-Modified-Since": same}, 304), ({"If-Modified-Since": after}, 304), ({"If-Modified-Since": before}, 200), ({"If-Modified-Since": "nonsense"}, 200),
        # RFC 9110 §5.6.7: the two old forms of a date are to be understood.
        ({"If-Modified-Since": rfc850}, 304), ({"If-Modified-Since": asctime}, 304), ({"If-Unmodified-Since": time.strftime("%a %b %e %H:%M:%S %Y", time.gmtime(at - 9))}, 412),
        ({"If-Unmodified-Since": same}, 200), ({"If-Unmodified-Since": before}, 412), ({"If-Unmodified-Since": after}, 200),
        # Tags come before dates; there are none here.
        ({"If-None-Match": '"x"'}, 200), ({"If-None-Match": "*"}, 304), ({"If-None-Match": '"x"', "If-Modified-Since": same}, 200), ({"If-None-Match": 'W/"x", "y"'}, 200),
        ({"If-Match": "*"}, 200), ({"If-Match": '"x"'}, 412), ({"If-Match": "*", "If-Unmodified-Since": before}, 200), ({"If-Match": '"x"', "If-None-Match": "*"}, 412),
        ({"If-Range": same, "Range": "bytes=0-1"}, 206), ({"If-Range": before, "Range": "bytes=0-1"}, 200), ({"If-Range": after, "Range": "bytes=0-1"}, 200), ({"If-Range": '"x"', "Range": "bytes=0-1"}, 200),
        ({"If-Modified-Since": same, "Range": "bytes=0-1"}, 304), ({"If-Modified-Since": before, "Range": "bytes=0-1"}, 206), ({"If-Unmodified-Since": before, "Range": "bytes=0-1"}, 412),
    ):
        status, answer, body = get(server, box, "/tmp/c", headers)
        assert status == wanted, (headers, status)
        assert body == {200: b"0123456789", 206: b"01", 304: b""}.get(status, body)
        if status in (200, 206, 304):
            assert answer["Last-Modified"] == same and answer["Vary"] == "Accept-Encoding"
    # A file that was changed this moment: its date does not yet tell two versions apart.
    put(server, box, "/tmp/c", b"abcdefghij")
    now = get(server, box, "/tmp/c")[1]["Last-Modified"]
    assert get(server, box, "/tmp/c", {"If-Range": now, "Range": "bytes=0-1"})[0] == 200


# ---- forms ----

def form(*parts, boundary="B", end=True):
    out = b"".join(b"--" + boundary.encode() + b"\r\n" + head.encode("utf-8", "surrogateescape") + b"\r\n\r\n" + body + b"\r\n" for head, body in parts)
    return out + (b"--" + boundary.encode() + b"--\r\n" if end else b"")


def post_form(server, box, body, query="", content_type="multipart/form-data; boundary=B", headers=None):
    status, _, answer = ask(server, box, "POST", "/files" + query, body, {"Content-Type": content_type, **(headers or {})})
    return status, json.loads(answer)


def part(filename=None, name="file"):
    return f'Content-Disposition: form-data; name="{name}"' + ("" if filename is None else f'; filename="{filename}"')


@pytest.mark.parametrize("sent, name", [
    ("plain", "plain"), ("a b", "a b"), ("a%20b", "a%20b"), ("a%2Fb", "a%2Fb"), ("q%22q", 'q"q'), ("line%0D%0Abreak", "line\r\nbreak"), ("ü日", "ü日"), ("back\\\\slash", "back\\slash"),
    ("dir/sub/f", "dir/sub/f"), ("%25", "%25"), ("a;b=c", "a;b=c"), ("...", "..."), ("-dash", "-dash"), ("tab%09", "tab\t"),
])
def test_085_names_in_forms(server, box, sent, name):
    status, answer = post_form(server, box, form((part("/home/user/form/" + sent), b"x")))
    assert status == 200 and answer[0]["path"] == "/home/user/form/" + name, answer
    assert box.files.read("/home/user/form/" + name) == "x"


def test_corners_of_forms(server, box):
    # Data that looks like a boundary, empty files, other fields, a preamble and an epilogue.
    data = b"--B\r\n--\r\n -- B\r\n-B\r\n--A\n--B\n\r\n\r\n-"
    body = b"preamble\r\n" + form((part("ignored", name="other"), b"1"), (part("/tmp/f1"), data), (part("/tmp/f2"), b""), (part(name="note"), b"text")) + b"epilogue"
    status, answer = post_form(server, box, body)
    assert status == 200 and [a["path"] for a in answer] == ["/tmp/f1", "/tmp/f2"], answer
    assert box.files.read("/tmp/f1", format="bytes") == data and box.files.read("/tmp/f2") == ""
    # A field that is text, with the path in the query.
    assert post_form(server, box, form((part(), b"text field")), "?path=/tmp/f3")[0] == 200
    assert box.files.read("/tmp/f3") == "text field"
    # Two files for one path: the first is written.
    status, answer = post_form(server, box, form((part("a"), b"first"), (part("b"), b"second")), "?path=/tmp/f4")
    assert status == 400 and "only the first specified file was uploaded" in answer["message"]
    assert box.files.read("/tmp/f4") == "first"
    assert post_form(server, box, form((part("/tmp/f5"), b"1"), (part("/tmp/f5"), b"2")))[0] == 400
    # What is none.
    for body, kind in ((form((part(), b"x")), None), (form((part(""), b"x")), None), (form((part("/tmp/f6"), b"x"), end=False), None), (b"", None), (b"--B--\r\n", None),
                       (form((part("/tmp/f7"), b"x")), "multipart/form-data"), (form((part("/tmp/f8"), b"x")), "multipart/form-data; boundary=" + "x" * 100),
                       (form((part("/tmp/f9"), b"x")), "multipart/form-data; boundary=C"), (form((part("/tmp/f10") + "\r\nno colon", b"x")), None)):
        status, answer = post_form(server, box, body, content_type=kind or "multipart/form-data; boundary=B")
        assert status == 400 or (status, answer) == (200, []), (body, kind, answer)
    status, answer = post_form(server, box, form((part("/tmp/q"), b"quoted"), boundary="a b'c"), content_type='Multipart/Form-Data; charset=x; boundary="a b\'c"')
    assert status == 200 and box.files.read("/tmp/q") == "quoted"
    # Packed as a whole.
    status, answer = post_form(server, box, gzip.compress(form((part("/tmp/g"), b"zipped"))), headers={"Content-Encoding": "gzip"})
    assert status == 200 and box.files.read("/tmp/g") == "zipped"


# ---- metadata ----

def test_metadata_of_uploads(server, box):
    status, _, answer = put(server, box, "/tmp/m", b"x", {"X-Metadata-Who": "me", "x-metadata-WHAT": " spaced  out "})
    assert status == 200 and json.loads(answer)[0]["metadata"] == {"who": "me", "what": "spaced  out"}
    assert box.files.get_info("/tmp/m").metadata == {"who": "me", "what": "spaced  out"}
    box.files.rename("/tmp/m", "/tmp/m2")
    assert box.files.get_info("/tmp/m2").metadata == {"who": "me", "what": "spaced  out"}
    assert box.files.write("/tmp/m2", b"y", metadata={"only": "this"}).metadata == {"only": "this"}
    status, _, answer = put(server, box, "/tmp/m2", b"z")
    assert "metadata" not in json.loads(answer)[0] and not box.files.get_info("/tmp/m2").metadata
    for headers in ({"X-Metadata-": "x"}, {"X-Metadata-" + "k" * 247: "x"}, {"X-Metadata-A": "é"}, {"X-Metadata-A": "x" * 4096}):
        status, _, answer = put(server, box, "/tmp/m3", b"x", headers)
        assert status == 400 and "invalid metadata" in json.loads(answer)["message"]
        assert not box.files.exists("/tmp/m3")


def test_metadata_that_the_file_system_has_no_room_for_is_no_full_disk(server, box):
    """Within the limit of 4,096 bytes, but ext4 keeps a file's attributes in one block of that size."""
    assert put(server, box, "/tmp/m", b"x", {"X-Metadata-A": "x" * 3900})[0] == 200
    status, _, answer = put(server, box, "/tmp/m", b"x", {f"X-Metadata-{i}": "x" * 70 for i in range(57)})
    assert status == 400 and "invalid metadata" in json.loads(answer)["message"], answer


# ---- /files/compose ----

def compose(server, box, **message):
    status, _, answer = ask(server, box, "POST", "/files/compose", json.dumps(message), {"Content-Type": "application/json"})
    return status, json.loads(answer)


def test_files_are_joined(server, box):
    parts = [os.urandom(300000) for _ in range(5)]
    for i, data in enumerate(parts):
        put(server, box, f"/tmp/part{i}", data)
    status, answer = compose(server, box, source_paths=[f"/tmp/part{i}" for i in range(5)], destination="/home/user/joined/all")
    assert (status, answer) == (200, {"name": "all", "path": "/home/user/joined/all", "type": "file"})
    assert box.files.read("/home/user/joined/all", format="bytes") == b"".join(parts)
    assert box.files.get_info("/home/user/joined/all").owner == "user"
    assert not any(box.files.exists(f"/tmp/part{i}") for i in range(5))
    put(server, box, "/tmp/one", b"1")
    for message, wanted in (({"source_paths": ["/tmp/one", "/tmp/none"], "destination": "/tmp/x"}, 404), ({"source_paths": [], "destination": "/tmp/x"}, 400), ({"source_paths": ["/tmp/one"]}, 400),
                            ({"source_paths": ["/tmp/one"], "destination": "/tmp/one"}, 400), ({"source_paths": ["/tmp"], "destination": "/tmp/x"}, 400), ({"source_paths": "/tmp/one", "destination": "/tmp/x"}, 400),
                            ({"source_paths": ["/tmp/one"], "destination": "/tmp/x", "username": "nobody-here"}, 401)):
        assert compose(server, box, **message)[0] == wanted, message
    assert box.files.read("/tmp/one") == "1" and not box.files.exists("/tmp/x")


# ---- pages of other origins ----

def test_f71_a_page_of_another_origin(server, box):
    """What a browser does: a preflight without any token, then the request, of which the page may read the answer."""
    origin = {"Origin": "https://page.example"}
    wanted = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type,x-metadata-who,x-access-token,authorization"}
    for target in ("/files?path=/tmp/x", "/filesystem.Filesystem/Stat", "/process.Process/Start", "/health"):
        status, headers, body = ask(server, box, "OPTIONS", target, headers=wanted, token=False)
        assert (status, body) == (204, b"") and headers["Access-Control-Allow-Origin"] == "*"
        assert "POST" in headers["Access-Control-Allow-Methods"]
        assert {h.strip().lower() for h in headers["Access-Control-Allow-Headers"].split(",")} >= {"content-type", "x-metadata-who", "x-access-token", "authorization"}
    status, headers, _ = ask(server, box, "POST", signed(box, "/home/user/page", int(time.time()) + 60, "write"), b"from a page", {**origin, "Content-Type": "application/octet-stream"}, token=False)
    assert status == 200 and headers["Access-Control-Allow-Origin"] == "*"
    status, headers, body = ask(server, box, "GET", signed(box, "/home/user/page", int(time.time()) + 60), headers=origin, token=False)
    assert (status, body, headers["Access-Control-Allow-Origin"]) == (200, b"from a page", "*")
    assert "Content-Disposition" in headers["Access-Control-Expose-Headers"]
    # Refusals are readable too: by a page that wants to tell its user why.
    for target, token in (("/files?path=/home/user/page", False), ("/files?path=/none", True), ("/none", True), ("/envs", False)):
        status, headers, _ = ask(server, box, "GET", target, headers=origin, token=token)
        assert status in (401, 404) and headers["Access-Control-Allow-Origin"] == "*", target


def test_a_page_may_read_that_its_sandbox_is_gone(server):
    b = Sandbox.create("base")
    b.kill()
    status, headers, body = ask(server, b, "GET", "/files?path=/x", headers={"Origin": "https://page.example"})
    assert status == 502 and headers["Access-Control-Allow-Origin"] == "*" and json.loads(body)["message"] == "The sandbox was not found"


# ---- time ----

def test_095_only_silence_ends_a_transfer(server, box):
    """A body that comes drop by drop is taken; nothing limits how long that lasts but silence (guest/files.h)."""
    def drops():
        for i in range(40):
            yield b"%d\n" % i
            time.sleep(0.1)
    status, _, _ = ask(server, box, "POST", file_target("/tmp/slow"), drops(), {"Content-Type": "application/octet-stream"}, chunked=True)
    assert status == 200 and box.files.read("/tmp/slow") == "".join(f"{i}\n" for i in range(40))
    assert wait_for(lambda: "cubicle-files" not in box.commands.run("ps -eo comm").stdout, 60, "the workers to be gone") is True
