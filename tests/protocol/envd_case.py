"""What the tests of envd by its commands share: an envd for each class, and its calls."""
import base64
import unittest

from envd import Envd


def b64(data):
    return base64.b64encode(data).decode()


def lines_of(path):
    with open(path) as f:
        return f.readlines()


class Case(unittest.TestCase):
    arguments = ("user=root", "env:E2B_SANDBOX=true", "env:A=1")

    @classmethod
    def setUpClass(cls):
        cls.envd = Envd(*cls.arguments)

    @classmethod
    def tearDownClass(cls):
        cls.envd.stop()

    def send(self, pid, data, kind="stdin", **headers):
        return self.envd.unary("SendInput", {"process": {"pid": pid}, "input": {kind: b64(data)}}, **headers)

    def start_with_deadline(self, command):
        """A shell command with a deadline that was not over when its first line had come: (stream, the line)."""
        for seconds in (1, 4, 16, 64):
            s = self.envd.start(["/bin/sh", "-c", command], headers={"Connect_Timeout_Ms": str(1000 * seconds)})
            name, value = s.event()
            if name == "start":
                s.pid = value["pid"]
                name, value = s.event()
                if name == "data":
                    return s, base64.b64decode(value["stdout"])
            s.close()  # the machine is slower than that
        self.fail("every deadline was over before a command wrote a line")

    def signal(self, pid, name="SIGNAL_SIGKILL", **more):
        return self.envd.unary("SendSignal", {"process": {"pid": pid}, "signal": name, **more})

    def assert_error(self, answer, status, code, text=""):
        self.assertEqual(answer[0], status, answer)
        self.assertEqual(answer[1]["code"], code)
        self.assertIn(text, answer[1]["message"])
