"""The small endpoints of envd, its token and what HTTP asks of it (e2b.md B), against envd_host."""
import base64
import gzip
import hashlib
import json
import time
import unittest
import urllib.parse

from envd import Stream
from envd_case import Case

UNAUTHORIZED = "unauthorized access, please provide a valid access token or method signing if supported"


class Http(Case):
    def test_health(self):
        status, headers, body = self.envd.connect().get("/health")
        self.assertEqual((status, body), (204, b""))
        self.assertEqual(headers["cache-control"], "no-store")
        self.assertNotIn("content-length", headers)

    def test_envs(self):
        status, headers, body = self.envd.connect().get("/envs")
        self.assertEqual((status, headers["content-type"]), (200, "application/json"))
        self.assertEqual(json.loads(body), {"E2B_SANDBOX": "true", "A": "1"})

    def test_metrics_have_every_key(self):
        status, headers, body = self.envd.connect().get("/metrics")
        self.assertEqual((status, headers["content-type"]), (200, "application/json"))
        self.assertEqual(set(json.loads(body)), {
            "ts", "cpu_count", "cpu_used_pct", "mem_total", "mem_used", "mem_cache", "mem_total_mib", "mem_used_mib", "disk_used", "disk_total"})

    def test_unknown_paths_are_404_json(self):
        c = self.envd.connect()
        for path in ("/", "/nope", "/init", "/process.Process/Nope", "/freeze"):
            c.request("POST", path, b"{}")
            status, headers = c.head()
            self.assertEqual((status, headers["content-type"]), (404, "application/json"), path)
            self.assertEqual(json.loads(c.body(headers))["code"], 404)

    def test_wrong_method_is_405_with_allow(self):
        c = self.envd.connect()
        for method, path, allow in (("POST", "/health", "GET, HEAD"), ("DELETE", "/envs", "GET, HEAD"), ("GET", "/process.Process/List", "POST")):
            c.request(method, path)
            status, headers = c.head()
            self.assertEqual((status, headers["allow"]), (405, allow))
            self.assertEqual(json.loads(c.body(headers))["code"], 405)

    def test_wrong_content_type_is_415(self):
        for method, kind in (("List", "text/plain"), ("List", "application/connect+json"), ("Start", "application/json"), ("List", "application/proto")):
            c = self.envd.connect()
            c.request("POST", "/process.Process/" + method, b"{}", Content_Type=kind)
            status, headers = c.head()
            self.assertEqual(status, 415)
            self.assertEqual(json.loads(c.body(headers))["code"], 415)

    def test_content_type_with_charset(self):
        self.assertEqual(self.envd.unary("List", {}, Content_Type="application/json; charset=utf-8")[0], 200)

    def test_chunked_body_and_any_case_of_headers(self):
        c = self.envd.connect()
        c.send(b"POST /process.Process/List HTTP/1.1\r\nhOST: x\r\nCONTENT-type: application/json\r\ntransfer-ENCODING: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n")
        status, headers = c.head()
        self.assertEqual((status, json.loads(c.body(headers))), (200, {"processes": []}))

    def test_connection_is_used_again_after_errors(self):
        c = self.envd.connect()
        self.assert_error(c.unary("SendSignal", {"process": {"pid": 999999999}}), 404, "not_found")
        self.assert_error(c.unary("List", b"{"), 400, "invalid_argument")
        self.assert_error(c.unary("List", b""), 400, "invalid_argument")
        self.assert_error(c.unary("List", b"[]"), 400, "invalid_argument")
        self.assertEqual(c.unary("List", {}), (200, {"processes": []}))

    def test_identity_coding_is_ignored_and_gzip_refused(self):
        self.assertEqual(self.envd.unary("List", {}, Connect_Content_Encoding="identity", Content_Encoding="identity")[0], 200)
        self.assert_error(self.envd.unary("List", {}, Content_Encoding="gzip"), 501, "unimplemented")

    def test_a_million_values_are_refused(self):
        s = Stream(self.envd.connect(), "Start", {"process": {"cmd": "true", "args": [1] * 1000000}})
        self.assertEqual(s.error()["code"], "invalid_argument")
        s.close()

    def test_message_over_the_limit(self):
        self.assert_error(self.envd.unary("List", {"a": "x" * 100000}), 429, "resource_exhausted")


class Token(Case):
    arguments = ("token=secret", "user=root")

    def test_every_path_but_health_wants_it(self):
        c = self.envd.connect()
        self.assertEqual(c.get("/health")[0], 204)
        for path in ("/envs", "/metrics", "/nope", "/process.Process/List"):
            for headers in ({}, {"X_Access_Token": "wrong"}, {"X_Access_Token": "secret1"}, {"X_Access_Token": ""}):
                status, answer, body = c.get(path, **headers)
                self.assertEqual((status, answer["content-type"]), (401, "application/json"))
                self.assertEqual(json.loads(body), {"code": 401, "message": UNAUTHORIZED})
        self.assertEqual(c.get("/envs", X_Access_Token="secret")[0], 200)

    def test_f71_a_preflight_wants_no_token(self):
        c = self.envd.connect()
        for path in ("/files?path=x&signature=y", "/process.Process/Start", "/health"):
            c.request("OPTIONS", path, Origin="https://page", Access_Control_Request_Method="POST", Access_Control_Request_Headers="authorization")
            status, headers = c.head()
            self.assertEqual(status, 204)
            self.assertEqual((headers["access-control-allow-origin"], headers["access-control-allow-headers"], headers["access-control-max-age"]), ("*", "authorization", "7200"))
            self.assertIn("POST", headers["access-control-allow-methods"])
        for path, wanted in (("/health", 204), ("/envs", 401), ("/files?path=x", 401)):
            status, headers, _ = c.get(path, Origin="https://page")
            self.assertEqual((status, headers["access-control-allow-origin"]), (wanted, "*"), path)
        self.assertNotIn("access-control-allow-origin", c.get("/health")[1])

    def test_091_a_signed_url_is_served_without_the_token(self):
        def path(text, expiration=None):
            digest = hashlib.sha256((text + ("" if expiration is None else ":%d" % expiration)).encode()).digest()
            signature = "v1_" + base64.b64encode(digest).decode().rstrip("=")
            more = {} if expiration is None else {"signature_expiration": expiration}
            return "/files?" + urllib.parse.urlencode({"path": "/etc/hostname", "signature": signature, **more})
        with open("/etc/hostname", "rb") as f:
            hostname = f.read()
        c = self.envd.connect()
        status, headers, body = c.get(path("/etc/hostname:read::secret"), Accept_Encoding="gzip, deflate")
        self.assertEqual((status, headers["content-encoding"], gzip.decompress(body)), (200, "gzip", hostname))
        self.assertEqual(c.get(path("/etc/hostname:read::secret", int(time.time()) + 1000), Range="bytes=0-0")[::2], (206, hostname[:1]))
        for query, message in ((path("/etc/hostname:write::secret"), "invalid signature"), (path("/etc/hostname:read::secret", 0), "signature is already expired")):
            status, _, body = c.get(query)
            self.assertEqual((status, json.loads(body)), (401, {"code": 401, "message": message}))

    def test_rpc_is_refused_with_a_plain_error(self):
        self.assertEqual(self.envd.unary("List", {}), (401, {"code": 401, "message": UNAUTHORIZED}))
        self.assertEqual(self.envd.unary("List", {}, x_access_token="secret")[0], 200)

    def test_stream(self):
        s = self.envd.start(["/bin/echo", "hi"], headers={"X_Access_Token": "secret"})
        self.assertEqual(s.finish()[0], b"hi\n")
        s.close()


if __name__ == "__main__":
    unittest.main()
