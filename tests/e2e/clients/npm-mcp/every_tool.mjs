// Every tool of the server through the published client, over standard streams or HTTP: what each answered, as one JSON object.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const { CUBICLE, CUBICLE_API_URL: url, CUBICLE_API_KEY: key } = process.env;
const transport = process.argv[2] === "stdio"
  ? new StdioClientTransport({ command: CUBICLE, args: ["mcp"], env: { CUBICLE_API_URL: url, CUBICLE_API_KEY: key } })
  : new StreamableHTTPClientTransport(new URL(url + "/mcp"), { requestInit: { headers: { Authorization: `Bearer ${key}` } } });
const client = new Client({ name: "every-tool", version: "1" });
await client.connect(transport);
const found = { tools: (await client.listTools()).tools.map((t) => t.name), server: client.getServerVersion().name };
const call = async (name, args, key = name) => { found[key] = await client.callTool({ name: "sandbox_" + name, arguments: args }, undefined, { timeout: 120000 }); };
await call("create", { envs: { COLOUR: "blue" }, metadata: { by: "every-tool" } });
await call("run_code", { code: "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show(); print('out'); 6 * 7" });
await call("run_command", { command: "echo $COLOUR; echo oops >&2; exit 3" });
await call("write_file", { path: "notes/a.txt", content: "hällo" });
await call("read_file", { path: "notes/a.txt" });
await call("list_files", { path: ".", depth: 2 });
await call("get_info", {});
await call("pause", {});
await call("resume", {});
await call("snapshot", { name: "every-tool" });
await call("fork", { count: 2 });
await call("run_command", { command: "cat notes/a.txt" }, "in_fork");
await call("destroy", {});
let ticks = 0;
found.slow = await client.callTool({ name: "sandbox_run_command", arguments: { command: "sleep 6; echo done" } }, undefined, { onprogress: () => { ticks++; }, timeout: 60000 });
found.ticks = ticks;
await transport.terminateSession?.();
await client.close();
console.log(JSON.stringify(found));
