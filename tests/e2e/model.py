"""A model that is a script: the Messages API over HTTP, which answers each request with the next step of a list, whatever it is asked."""

import http.server
import json
import threading


class Model:
    """steps: {"tool": suffix of a tool's name, "input": {...}} or {"text": ...}; a callable gets the text of the last tool result and returns one of these."""

    def __init__(self, steps):
        self.steps, self.results, self.tools, self.lock = steps, [], set(), threading.Lock()
        model = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def reply(self, body, kind="application/json"):
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def do_GET(self):
                self.reply(b"{}")

            do_HEAD = do_GET

            def do_POST(self):
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
                if not self.path.split("?")[0].endswith("/messages"):
                    self.reply(json.dumps({"input_tokens": 1}).encode())
                    return
                blocks = model.answer(asked)
                if asked.get("stream"):
                    self.reply(stream(blocks), "text/event-stream")
                else:
                    self.reply(json.dumps({**message(blocks), "content": blocks}).encode())

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, asked):
        names = [t["name"] for t in asked.get("tools", [])]
        with self.lock:
            self.tools.update(names)
            results = [b for m in asked["messages"] if m["role"] == "user" and isinstance(m["content"], list) for b in m["content"] if b.get("type") == "tool_result"]
            texts = ["".join(p.get("text", "") for p in r["content"]) if isinstance(r["content"], list) else str(r.get("content", "")) for r in results]
            # Small questions beside the conversation (a title, whether the topic is new) come without our tools.
            if not any(n.endswith("sandbox_create") for n in names):
                return [{"type": "text", "text": "ok"}]
            self.results = texts
            step = self.steps[min(len(texts), len(self.steps) - 1)]
            if callable(step):
                step = step(texts[-1])
            if "text" in step:
                return [{"type": "text", "text": step["text"]}]
            name = next(n for n in names if n.endswith(step["tool"]))
            return [{"type": "tool_use", "id": f"toolu_{len(texts):04}", "name": name, "input": step["input"]}]


def message(blocks):
    return {"id": "msg_1", "type": "message", "role": "assistant", "model": "script", "content": [], "stop_reason": "tool_use" if blocks[0]["type"] == "tool_use" else "end_turn",
            "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}


def stream(blocks):
    events = [{"type": "message_start", "message": {**message(blocks), "stop_reason": None}}]
    for i, block in enumerate(blocks):
        text = block["type"] == "text"
        events.append({"type": "content_block_start", "index": i, "content_block": {"type": "text", "text": ""} if text else {**block, "input": {}}})
        delta = {"type": "text_delta", "text": block["text"]} if text else {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        events += [{"type": "content_block_delta", "index": i, "delta": delta}, {"type": "content_block_stop", "index": i}]
    events += [{"type": "message_delta", "delta": {"stop_reason": message(blocks)["stop_reason"], "stop_sequence": None}, "usage": {"output_tokens": 1}}, {"type": "message_stop"}]
    return b"".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events)
