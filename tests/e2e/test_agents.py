"""Agents use the server as their tool (integrations/agents): the programs themselves, with a model that is a script."""

import json
import os
import pathlib
import shutil
import subprocess

import pytest

from conftest import serving
from model import Model
from server import BUILD, ROOT, clean_env, wait_for

AGENTS = ROOT / "integrations/agents"
PI = ROOT / "tests/e2e/clients/npm-pi/node_modules/.bin/pi"

STEPS = [
    {"tool": "sandbox_create", "input": {"template": "base"}},
    {"tool": "sandbox_write_file", "input": {"path": "six.py", "content": "print(6 * 7)"}},
    {"tool": "sandbox_run_command", "input": {"command": "python3 six.py; hostname"}},
    lambda said: {"text": "It says " + said.replace("\n", " ")},
]


@pytest.fixture(scope="module")
def server():
    with serving() as s:
        yield s


@pytest.fixture
def model():
    m = Model(STEPS)
    yield m
    m.close()


@pytest.fixture
def home(tmp_path, server):
    """An environment in which `cubicle` is the one under test, and the agent's own settings are empty."""
    bin = tmp_path / "bin"
    bin.mkdir()
    (bin / "cubicle").symlink_to(BUILD / "src/cli/cubicle")
    return clean_env({"HOME": str(tmp_path), "PATH": f"{bin}:{ROOT / 'build/bin'}:{os.environ['PATH']}", "CUBICLE_API_URL": server.url, "CUBICLE_API_KEY": server.api_key})


def check(server, model, said):
    assert len([t for t in model.tools if "sandbox_" in t]) == 12
    box = model.results[0].split()[1]
    assert "42" in model.results[2] and box in model.results[2]  # it ran in that sandbox, not here
    assert "42" in said and box in said
    wait_for(lambda: not server.call("GET", "/v2/sandboxes")[1], 60, "the sandboxes of the session are ended")


def test_pi(server, model, home, tmp_path):
    settings = tmp_path / ".pi/agent"
    settings.mkdir(parents=True)
    (settings / "models.json").write_text(json.dumps({"providers": {"script": {"baseUrl": model.url, "api": "anthropic-messages", "apiKey": "none", "models": [{"id": "script"}]}}}))
    r = subprocess.run([PI, "--no-extensions", "-e", AGENTS / "pi/cubicle.ts", "--no-builtin-tools", "--no-session", "--offline", "--provider", "script", "--model", "script", "-p",
                        "What is six times seven?"], env=home, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert r.returncode == 0, r.stdout + r.stderr
    check(server, model, r.stdout)


def test_claude_code(server, model, home, tmp_path):
    """With the program where it is installed (it is too big to be fetched for every run), else with what it sends, recorded (recorded_claude.py)."""
    config = AGENTS / "claude-code/mcp.json"
    program = shutil.which("claude")
    if not program:
        words = [ROOT / "build/venv/bin/python", pathlib.Path(__file__).parent / "recorded_claude.py", config, model.url]
    else:
        words = [program, "--mcp-config", config, "--strict-mcp-config", "--disallowedTools", "Bash,Write,Edit", "--allowedTools", "mcp__cubicle", "-p", "What is six times seven?"]
    env = {**home, "ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "none", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1",
           "ENABLE_TOOL_SEARCH": "false"}  # the model is told of all tools at once
    r = subprocess.run(words, env=env, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert r.returncode == 0, r.stdout + r.stderr
    check(server, model, r.stdout)
