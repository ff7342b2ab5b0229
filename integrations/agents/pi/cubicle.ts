/**
 * Sandboxes as tools of Pi: starts `cubicle mcp`, and registers what it offers.
 */
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import type { ExtensionAPI } from "@mariozechner/pi-coding-agent";
import { Type } from "typebox";

type Answer = { result?: any; error?: { message: string } };

class Server {
  private waiting = new Map<number, (a: Answer) => void>();
  private last = 0;
  private gone = "";
  private child = spawn("cubicle", ["mcp", ...(process.env.CUBICLE_MCP_FLAGS ?? "").split(" ").filter(Boolean)], { stdio: ["pipe", "pipe", "inherit"] });

  constructor() {
    this.child.on("error", (e) => this.end(`cubicle mcp cannot be started: ${e.message}`));
    this.child.on("exit", () => this.end("cubicle mcp has ended"));
    this.child.stdin.on("error", () => {}); // its exit tells
    createInterface({ input: this.child.stdout }).on("line", (line) => {
      const message = JSON.parse(line);
      this.waiting.get(message.id)?.(message);
      this.waiting.delete(message.id);
    });
  }

  private end(why: string) {
    this.gone ||= why;
    for (const settle of this.waiting.values()) settle({ error: { message: this.gone } });
    this.waiting.clear();
  }

  private send(message: object) {
    this.child.stdin.write(JSON.stringify({ jsonrpc: "2.0", ...message }) + "\n");
  }

  /** Rejects when the server refuses, has ended, or the signal is given: then the server is told, which kills the command. */
  request(method: string, params: object, signal?: AbortSignal): Promise<any> {
    const id = ++this.last;
    return new Promise((resolve, reject) => {
      if (this.gone) return reject(new Error(this.gone));
      const cancel = () => {
        this.waiting.delete(id);
        this.send({ method: "notifications/cancelled", params: { requestId: id } });
        reject(new Error("cancelled"));
      };
      if (signal?.aborted) return reject(new Error("cancelled"));
      signal?.addEventListener("abort", cancel, { once: true });
      this.waiting.set(id, (answer) => {
        signal?.removeEventListener("abort", cancel);
        if (answer.error) reject(new Error(answer.error.message));
        else resolve(answer.result);
      });
      this.send({ id, method, params });
    });
  }

  async initialize() {
    await this.request("initialize", { protocolVersion: "2025-11-25", capabilities: {}, clientInfo: { name: "pi", version: "1" } });
    this.send({ method: "notifications/initialized" });
    return (await this.request("tools/list", {})).tools;
  }

  /** The server ends the sandboxes of the session, then itself. */
  close(): Promise<void> {
    return new Promise((resolve) => {
      if (this.gone) return resolve();
      this.child.once("exit", () => resolve());
      this.child.stdin.end();
    });
  }
}

export default async function (pi: ExtensionAPI) {
  const server = new Server();
  for (const tool of await server.initialize()) {
    pi.registerTool({
      name: tool.name,
      label: tool.title,
      description: tool.description,
      parameters: Type.Unsafe(tool.inputSchema),
      async execute(_id, params, signal) {
        const result = await server.request("tools/call", { name: tool.name, arguments: params }, signal);
        const content = result.content.map((part: any) =>
          part.type === "resource" ? { type: "text", text: `${part.resource.uri} (${part.resource.mimeType}), base64:\n${part.resource.blob}` } : part);
        if (result.isError) throw new Error(content.map((part: any) => part.text).join("\n"));
        return { content, details: {} };
      },
    });
  }
  pi.on("session_shutdown", () => server.close());
}
