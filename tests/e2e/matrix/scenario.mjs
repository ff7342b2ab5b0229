// One of everything that a JavaScript client sends, for record.py: no result is checked here.
const D = '/tmp/recorded-00000000'

export async function play(sdk) {
  const { Sandbox } = sdk
  const made = await Sandbox.create('base', { metadata: { a: 'b c' }, envs: { X: '1' }, timeoutMs: 600_000 })
  await Sandbox.create('base').then((s) => s.kill())
  const s = await Sandbox.connect(made.sandboxId)
  await Sandbox.connect(made.sandboxId, { timeoutMs: 60_000 })
  await s.setTimeout(500_500)
  await Sandbox.list({ query: { metadata: { 'k y': 'v&=ü' }, state: ['running', 'paused'] }, limit: 5 }).nextItems()
  await s.getInfo()
  await s.isRunning()
  await s.commands.run('echo hi', { envs: { A: 'b' }, cwd: '/tmp', timeoutMs: 0 })
  const cat = await s.commands.run('cat', { background: true, stdin: true })
  await s.commands.list()
  await s.commands.sendStdin(cat.pid, 'abc')
  await (await s.commands.connect(cat.pid)).disconnect()
  await s.commands.kill(cat.pid)
  if (s.commands.closeStdin) {
    const again = await s.commands.run('cat', { background: true, stdin: true })
    await s.commands.closeStdin(again.pid)
  }
  const pty = await s.pty.create({ cols: 80, rows: 24, onData: () => {} })
  await s.pty.resize(pty.pid, { cols: 100, rows: 30 })
  await s.pty.sendInput(pty.pid, new Uint8Array([1, 2]))
  await s.pty.kill(pty.pid)
  await s.files.write(`${D}/a ü".txt`, 'hello')
  await s.files.write(`${D}/oct`, new Blob(['octets']), { useOctetStream: true, metadata: { foo: 'bar' } })
  await s.files.write(`${D}/zip`, 'zipped', { gzip: true })
  await s.files.write([{ path: `${D}/1`, data: '1' }, { path: `${D}/2`, data: '2' }])
  await s.files.write(`${D}/stream`, new ReadableStream({ start(c) { c.enqueue(new TextEncoder().encode('streamed')); c.close() } }))
  await s.files.read(`${D}/a ü".txt`)
  await s.files.read(`${D}/zip`, { gzip: true, format: 'bytes' })
  await s.files.list(D, { depth: 2 })
  await s.files.makeDir(`${D}/dir`)
  await s.files.getInfo(`${D}/1`)
  await s.files.exists(`${D}/2`)
  await s.files.rename(`${D}/1`, `${D}/deep/3`)
  await s.files.remove(`${D}/2`)
  await (await s.files.watchDir(D, () => {}, { recursive: true })).stop()
  await s.kill()
}
