"""Claude Code's side where its program is not: what version 2.1.332 sent to `cubicle mcp` in the same session, recorded, with the model asked as it asks it. argv: mcp.json, the model's address."""

import json
import os
import re
import subprocess
import sys
import urllib.request

config = json.load(open(sys.argv[1]))["mcpServers"]["cubicle"]


def expand(text):
    return re.sub(r"\$\{(\w+)(?::-([^}]*))?\}", lambda m: os.environ.get(m[1]) or m[2] or "", text)


server = subprocess.Popen([config["command"], *map(expand, config["args"])], env={**os.environ, **{k: expand(v) for k, v in config["env"].items()}},
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def send(message):
    server.stdin.write(json.dumps(message) + "\n")
    server.stdin.flush()


def request(message):
    send(message)
    while True:
        answer = json.loads(server.stdout.readline())
        if answer.get("id") == message["id"]:
            return answer


CLIENT = {"name": "claude-code", "title": "Claude Code", "version": "2.1.332", "description": "Anthropic's agentic coding tool", "websiteUrl": "https://claude.com/claude-code"}
CAN = {"roots": {"listChanged": True}, "elicitation": {"form": {}, "url": {}}}
# It asks for a later version of the protocol first, which has no initialize.
probe = request({"jsonrpc": "2.0", "id": "server-discover-probe-1", "method": "server/discover", "params": {"_meta": {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientInfo": CLIENT, "io.modelcontextprotocol/clientCapabilities": CAN}}})
assert probe["error"]["code"] == -32601, probe
request({"method": "initialize", "params": {"protocolVersion": "2025-11-25", "capabilities": CAN, "clientInfo": CLIENT}, "jsonrpc": "2.0", "id": 0})
send({"jsonrpc": "2.0", "method": "notifications/initialized"})
tools = request({"method": "tools/list", "jsonrpc": "2.0", "id": 1})["result"]["tools"]
offered = [{"name": "mcp__cubicle__" + t["name"], "description": t["description"], "input_schema": t["inputSchema"]} for t in tools]
messages, last = [{"role": "user", "content": [{"type": "text", "text": "What is six times seven?"}]}], 1
while True:
    asked = urllib.request.Request(sys.argv[2] + "/v1/messages", json.dumps({"model": "script", "messages": messages, "tools": offered}).encode(), {"Content-Type": "application/json"})
    content = json.load(urllib.request.urlopen(asked))["content"]
    if content[0]["type"] == "text":
        print(content[0]["text"])
        break
    use, last = content[0], last + 1
    result = request({"method": "tools/call", "params": {"name": use["name"].removeprefix("mcp__cubicle__"), "arguments": use["input"],
                                                         "_meta": {"claudecode/toolUseId": use["id"], "progressToken": last}}, "jsonrpc": "2.0", "id": last})["result"]
    messages += [{"role": "assistant", "content": content}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use["id"], "content": result["content"]}]}]
server.stdin.close()
sys.exit(server.wait())
