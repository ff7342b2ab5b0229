// The published JavaScript client against the server named by E2B_API_URL (e2b.md Appendix 1; run by test_javascript.py).
import test from 'node:test'
import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { Sandbox, CommandExitError, NotFoundError, FileNotFoundError, TimeoutError, SandboxNotFoundError } from 'e2b'

const withSandbox = (options, body) => async () => {
  const sandbox = await Sandbox.create('base', options)
  try {
    await body(sandbox)
  } finally {
    await sandbox.kill()
  }
}

test('create, run, kill', async () => {
  const sandbox = await Sandbox.create('base')
  assert.equal((await sandbox.commands.run('echo hi')).stdout, 'hi\n')
  assert.equal(await sandbox.kill(), true)
  assert.equal(await sandbox.kill(), false)
  assert.equal(await sandbox.isRunning(), false)
})

test('output, exit code, environment, working directory, user', withSandbox({ envs: { GLOBAL: 'g' } }, async (sandbox) => {
  const out = []
  await assert.rejects(sandbox.commands.run('echo out; echo err >&2; exit 3', { onStdout: (d) => out.push(d) }), (e) => e instanceof CommandExitError && e.exitCode === 3 && e.stderr === 'err\n')
  assert.equal(out.join(''), 'out\n')
  const r = await sandbox.commands.run('echo $GLOBAL $LOCAL; pwd; whoami', { envs: { LOCAL: 'l' }, cwd: '/tmp', user: 'root' })
  assert.equal(r.stdout, 'g l\n/tmp\nroot\n')
}))

test('a killed command is gone when kill answers', withSandbox({}, async (sandbox) => {
  const handle = await sandbox.commands.run('sleep 1000', { background: true })
  assert.ok((await sandbox.commands.list()).some((p) => p.pid === handle.pid && p.args.at(-1) === 'sleep 1000'))
  assert.equal(await sandbox.commands.kill(handle.pid), true)
  await assert.rejects(sandbox.commands.run(`kill -0 ${handle.pid}`), CommandExitError)
  assert.equal(await sandbox.commands.kill(handle.pid), false)
  await assert.rejects(sandbox.commands.connect(99999999), NotFoundError)
}))

test('a command that runs too long is rejected and dies', withSandbox({}, async (sandbox) => {
  await assert.rejects(sandbox.commands.run('sleep 777', { timeoutMs: 1000 }), TimeoutError)
  const left = await sandbox.commands.run("ps -eo args | grep -c '^sleep 777' || true")
  assert.equal(left.stdout.trim(), '0')
}))

test('stdin: written, closed, delivered in order', withSandbox({}, async (sandbox) => {
  const handle = await sandbox.commands.run('cat', { background: true, stdin: true })
  for (let i = 0; i < 100; i++) await sandbox.commands.sendStdin(handle.pid, `line ${i}\n`)
  await sandbox.commands.closeStdin(handle.pid)
  const r = await handle.wait()
  assert.equal(r.stdout, Array.from({ length: 100 }, (_, i) => `line ${i}\n`).join(''))
}))

test('disconnect and connect by pid', withSandbox({}, async (sandbox) => {
  const handle = await sandbox.commands.run('for i in 1 2 3 4; do echo tick $i; sleep 0.5; done', { background: true })
  await handle.disconnect()
  const again = await sandbox.commands.connect(handle.pid)
  assert.match((await again.wait()).stdout, /tick 4/)
}))

test('two subscribers both get the output', withSandbox({}, async (sandbox) => {
  const handle = await sandbox.commands.run('sleep 1; seq 20000', { background: true })
  const second = await sandbox.commands.connect(handle.pid)
  const [a, b] = await Promise.all([handle.wait(), second.wait()])
  assert.equal(a.stdout, b.stdout)
  assert.equal(a.stdout.split('\n').length, 20001)
}))

test('pty: size, resize, input, exit code', withSandbox({}, async (sandbox) => {
  let text = ''
  const pty = await sandbox.pty.create({ cols: 80, rows: 24, onData: (d) => { text += Buffer.from(d).toString('latin1') } })
  await sandbox.pty.sendInput(pty.pid, new TextEncoder().encode('tput cols; tput lines\n'))
  await sandbox.pty.resize(pty.pid, { cols: 123, rows: 45 })
  await sandbox.pty.sendInput(pty.pid, new TextEncoder().encode('stty size; exit\n'))
  assert.equal((await pty.wait()).exitCode, 0)
  assert.match(text, /45 123/)
}))

test('files: names, bytes, empty, missing, listing', withSandbox({}, async (sandbox) => {
  for (const name of ['plain', 'a b', 'q"uote', 'per%41cent', 'ü-é', 'a+b#c?d', 'esc\x1b\x01\x7f\ttab', 'line\nbreak\r', 'x'.repeat(255)]) {
    const bytes = randomBytes(70000)
    const info = await sandbox.files.write(`dir/${name}`, new Blob([bytes]))
    assert.equal(info.path, `/home/user/dir/${name}`)
    const back = Buffer.from(await sandbox.files.read(`dir/${name}`, { format: 'bytes' }))
    assert.deepEqual(back, bytes)
  }
  assert.equal((await sandbox.files.list('dir')).length, 9)
  await sandbox.files.write('empty', '')
  assert.equal(await sandbox.files.read('empty'), '')
  assert.equal((await sandbox.files.read('empty', { format: 'bytes' })).length, 0)
  await assert.rejects(sandbox.files.read('nope'), FileNotFoundError)
  assert.equal(await sandbox.files.exists('nope'), false)
  assert.equal(await sandbox.files.makeDir('made'), true)
  assert.equal(await sandbox.files.makeDir('made'), false)
  const written = await sandbox.files.write([{ path: 'm1', data: '1' }, { path: 'deep/m2', data: '2' }])
  assert.deepEqual(written.map((w) => w.path), ['/home/user/m1', '/home/user/deep/m2'])
  await sandbox.files.rename('m1', 'deep/m3')
  await sandbox.files.remove('deep')
  assert.equal(await sandbox.files.exists('deep/m3'), false)
}))

test('a streamed upload and its hash inside', withSandbox({}, async (sandbox) => {
  const block = randomBytes(1 << 20)
  const hash = createHash('sha256')
  let left = 64
  const stream = new ReadableStream({
    pull(controller) {
      if (left-- === 0) return controller.close()
      hash.update(block)
      controller.enqueue(block)
    },
  })
  await sandbox.files.write('streamed', stream)
  const r = await sandbox.commands.run('sha256sum streamed')
  assert.equal(r.stdout.split(' ')[0], hash.digest('hex'))
}))

test('list with a metadata filter, paging and info', async () => {
  const tag = `js ${randomBytes(4).toString('hex')} &=ü`
  const made = await Promise.all([1, 2, 3].map(() => Sandbox.create('base', { metadata: { tag } })))
  const pages = Sandbox.list({ query: { metadata: { tag } }, limit: 2 })
  const seen = []
  while (pages.hasNext) seen.push(...(await pages.nextItems()))
  assert.deepEqual(new Set(seen.map((s) => s.sandboxId)), new Set(made.map((s) => s.sandboxId)))
  const info = await made[0].getInfo()
  assert.equal(info.name, 'base')
  assert.equal(info.state, 'running')
  await Promise.all(made.map((s) => s.kill()))
  await assert.rejects(Sandbox.getInfo(made[0].sandboxId), SandboxNotFoundError)
})

test('connect extends, setTimeout replaces', async () => {
  const sandbox = await Sandbox.create('base', { timeoutMs: 100_000 })
  const end = async () => (await sandbox.getInfo()).endAt.getTime()
  const first = await end()
  await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 10_000 })
  assert.equal(await end(), first)
  await sandbox.setTimeout(500_000)
  assert.ok((await end()) > first + 300_000)
  await sandbox.setTimeout(30_000)
  assert.ok((await end()) < first)
  const connected = await Sandbox.connect(sandbox.sandboxId)
  assert.equal((await connected.commands.run('echo same')).stdout, 'same\n')
  await sandbox.kill()
})

test('a sandbox killed during a command ends the command with the right error', async () => {
  const sandbox = await Sandbox.create('base')
  const running = sandbox.commands.run('sleep 60')
  const failure = assert.rejects(running, (e) => e instanceof TimeoutError || /terminated|not running|killed/i.test(e.message))
  await new Promise((r) => setTimeout(r, 1000))
  await sandbox.kill()
  await failure
})
