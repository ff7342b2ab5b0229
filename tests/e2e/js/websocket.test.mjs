// WebSockets as browsers open them (undici's client is theirs), through the ingress (field cases 145, 146).
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Sandbox } from 'e2b'
import { WebSocket } from 'undici'

// Opens one; how it ended: { opened, code, reason, messages }.
function socket(sandbox, port, path = '/', protocols = ['chat']) {
  const ws = new WebSocket(process.env.E2B_API_URL.replace('http', 'ws') + path, {
    protocols,
    headers: { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': String(port), Origin: 'http://page.example' },
  })
  const seen = { ws, opened: false, messages: [] }
  ws.onopen = () => { seen.opened = true }
  ws.onmessage = (e) => { seen.messages.push(e.data) }
  seen.ended = new Promise((resolve) => { ws.onclose = (e) => resolve({ opened: seen.opened, code: e.code, reason: e.reason }) })
  return seen
}

// Echoes texts, closes with a code of its own when told, and refuses /no.
const SERVICE = `
import asyncio, base64, hashlib, struct
async def serve(r, w):
    head = (await r.readuntil(b"\\r\\n\\r\\n")).decode()
    if head.startswith("GET /no"):
        w.write(b"HTTP/1.1 403 No\\r\\nContent-Length: 3\\r\\n\\r\\nno!")
    else:
        key = [l.split(": ")[1] for l in head.split("\\r\\n") if l.lower().startswith("sec-websocket-key:")][0]
        accept = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
        w.write(f"HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Accept: {accept}\\r\\nSec-WebSocket-Protocol: chat\\r\\n\\r\\n".encode())
        while True:
            first, n = await r.readexactly(2)
            n &= 127
            if n == 126: n, = struct.unpack(">H", await r.readexactly(2))
            mask = await r.readexactly(4)
            data = bytes(b ^ mask[i % 4] for i, b in enumerate(await r.readexactly(n)))
            if data == b"close":
                w.write(b"\\x88\\x06" + struct.pack(">H", 4321) + b"done")
                break
            w.write(bytes([first]) + (bytes([n]) if n < 126 else b"\\x7e" + struct.pack(">H", n)) + data)
            await w.drain()
    await w.drain()
    w.close()
async def main():
    await asyncio.start_server(serve, "127.0.0.1", 3001)
    await asyncio.Event().wait()
asyncio.run(main())
`

test('146: a socket that leads nowhere is told why; one that a service refuses gets its answer', async () => {
  const sandbox = await Sandbox.create('base')
  try {
    await sandbox.files.write('service.py', SERVICE)
    await sandbox.commands.run('python3 service.py', { background: true, timeoutMs: 0 })
    const closed = await socket(sandbox, 3999).ended
    assert.deepEqual(closed, { opened: true, code: 4001, reason: 'The sandbox is running but port is not open' })
    let echo
    for (let i = 0; i < 100; i++) {
      echo = socket(sandbox, 3001)
      if ((await Promise.race([echo.ended, new Promise((r) => { const t = setInterval(() => { if (echo.opened) { clearInterval(t); r(null) } }, 10) })]))?.code !== 4001) break
    }
    for (const text of ['hello', 'x'.repeat(60000), 'ü']) echo.ws.send(text)
    for (let i = 0; i < 500 && echo.messages.length < 3; i++) await new Promise((r) => setTimeout(r, 20))
    assert.deepEqual(echo.messages, ['hello', 'x'.repeat(60000), 'ü'])
    // Its own codes pass.
    echo.ws.send('close')
    assert.deepEqual(await echo.ended, { opened: true, code: 4321, reason: 'done' })
    const refused = await socket(sandbox, 3001, '/no').ended
    assert.equal(refused.opened, false)
    const silent = socket(sandbox, 3001)
    for (let i = 0; i < 500 && !silent.opened; i++) await new Promise((r) => setTimeout(r, 20))
    assert.ok(silent.opened)
    await sandbox.kill()
    assert.equal((await silent.ended).code, 1006) // cut: what was under way did not end regularly
    assert.deepEqual(await socket(sandbox, 3001).ended, { opened: true, code: 4004, reason: 'The sandbox was not found' })
  } finally {
    await sandbox.kill()
  }
})
