"""Every tool of the server through the published Python client, over standard streams: what each answered, as one JSON object."""

import asyncio
import json
import os

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

ENV = {name: os.environ[name] for name in ("CUBICLE_API_URL", "CUBICLE_API_KEY")}
CALLS = [
    ("create", {"envs": {"COLOUR": "blue"}}, "create"),
    ("run_code", {"code": "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show(); print('out'); 6 * 7"}, "run_code"),
    ("run_command", {"command": "echo $COLOUR; echo oops >&2; exit 3"}, "run_command"),
    ("write_file", {"path": "notes/a.txt", "content": "hällo"}, "write_file"),
    ("read_file", {"path": "notes/a.txt"}, "read_file"),
    ("list_files", {"path": ".", "depth": 2}, "list_files"),
    ("get_info", {}, "get_info"),
    ("pause", {}, "pause"),
    ("resume", {}, "resume"),
    ("snapshot", {"name": "every-tool"}, "snapshot"),
    ("fork", {"count": 2}, "fork"),
    ("run_command", {"command": "cat notes/a.txt"}, "in_fork"),
    ("destroy", {}, "destroy"),
]


async def main():
    async with stdio_client(StdioServerParameters(command=os.environ["CUBICLE"], args=["mcp"], env=ENV)) as (reading, writing):
        async with ClientSession(reading, writing) as client:
            server = await client.initialize()
            dumped = server.model_dump(mode="json", by_alias=True)
            found = {"server": dumped["serverInfo"]["name"], "tools": [t.name for t in (await client.list_tools()).tools]}
            for name, arguments, key in CALLS:
                answer = await client.call_tool("sandbox_" + name, arguments)
                found[key] = answer.model_dump(mode="json", by_alias=True, exclude_none=True)
            print(json.dumps(found))


asyncio.run(main())
