// Watching directories through the published JavaScript client (e2b.md B.7, F 73-75).
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { FileNotFoundError, FilesystemEventType, InvalidArgumentError, Sandbox, TimeoutError } from 'e2b'

const { CREATE, WRITE, REMOVE, RENAME, CHMOD } = FilesystemEventType

// A watch with what it told, and a promise of its end.
async function watch(sandbox, path, opts = {}) {
  const w = { events: [] }
  w.ended = new Promise((resolve) => { w.end = resolve })
  w.handle = await sandbox.files.watchDir(path, (e) => { w.events.push(e) }, { timeoutMs: 0, onExit: (e) => w.end(e ?? null), ...opts })
  w.until = async (type, name) => {
    for (let left = 3000; left > 0; left--) {
      if (w.events.some((e) => e.type === type && e.name === name)) return w.events.map((e) => `${e.type} ${e.name}`)
      await new Promise((r) => setTimeout(r, 20))
    }
    assert.fail(`no ${type} of ${name} in ${JSON.stringify(w.events.slice(-20))}`)
  }
  return w
}

function withSandbox(f) {
  return async () => {
    const sandbox = await Sandbox.create('base')
    try {
      await f(sandbox)
    } finally {
      await sandbox.kill()
    }
  }
}

test('each change has its event, direct children only', withSandbox(async (sandbox) => {
  await sandbox.commands.run('mkdir -p w/sub')
  const w = await watch(sandbox, 'w')
  await sandbox.commands.run('echo x > w/f; chmod 600 w/f; mv w/f w/g; rm w/g; echo y > w/sub/unseen; touch w/last')
  const told = await w.until(CREATE, 'last')
  for (const wanted of [`${CREATE} f`, `${WRITE} f`, `${CHMOD} f`, `${RENAME} f`, `${CREATE} g`, `${REMOVE} g`]) assert.ok(told.includes(wanted), wanted)
  assert.ok(!told.some((t) => t.includes('unseen')))
  await w.handle.stop()
  await w.ended
}))

test('directories made later, with the files written in the same breath', withSandbox(async (sandbox) => {
  await sandbox.commands.run('mkdir w')
  const w = await watch(sandbox, 'w', { recursive: true, includeEntry: true })
  await sandbox.commands.run('cd w; for i in $(seq 50); do mkdir -p $i/a/b/c/d && echo x | tee $i/f $i/a/f $i/a/b/f $i/a/b/c/f $i/a/b/c/d/f > /dev/null; done; touch last')
  const told = await w.until(CREATE, 'last')
  for (let i = 1; i <= 50; i++) {
    for (const dir of [`${i}`, `${i}/a`, `${i}/a/b`, `${i}/a/b/c`, `${i}/a/b/c/d`]) {
      assert.equal(told.filter((t) => t === `${CREATE} ${dir}`).length, 1, dir)
      assert.equal(told.filter((t) => t === `${CREATE} ${dir}/f`).length, 1, dir)
      assert.ok(told.includes(`${WRITE} ${dir}/f`), dir)
    }
  }
  const entry = w.events.find((e) => e.name === '7/a/f' && e.type === WRITE).entry
  assert.equal(entry.path, '/home/user/w/7/a/f')
  assert.equal(entry.size, 2)
  assert.equal(entry.owner, 'user')
  await w.handle.stop()
}))

test('ten thousand files in a burst', withSandbox(async (sandbox) => {
  await sandbox.commands.run('mkdir w')
  const w = await watch(sandbox, 'w', { recursive: true })
  await sandbox.commands.run('mkdir w/d && cd w/d && seq -f f%05.0f 10000 | xargs touch && touch ../last')
  const told = new Set(await w.until(CREATE, 'last'))
  for (let i = 1; i <= 10000; i++) assert.ok(told.has(`${CREATE} d/f${String(i).padStart(5, '0')}`), `f${i}`)
  await w.handle.stop()
}))

test('what cannot be watched', withSandbox(async (sandbox) => {
  await sandbox.files.write('file', 'x')
  await assert.rejects(sandbox.files.watchDir('/no/such', () => {}), FileNotFoundError)
  await assert.rejects(sandbox.files.watchDir('file', () => {}), InvalidArgumentError)
}))

test('a removed directory, a deadline, a killed sandbox', withSandbox(async (sandbox) => {
  await sandbox.commands.run('mkdir -p w/d && touch w/d/f')
  const removed = await watch(sandbox, 'w/d')
  await sandbox.files.remove('w/d')
  assert.ok((await removed.until(REMOVE, '.')).includes(`${REMOVE} f`))
  const short = await watch(sandbox, 'w', { timeoutMs: 1000 })
  assert.ok((await short.ended) instanceof TimeoutError)
  const killed = await watch(sandbox, 'w')
  await sandbox.kill()
  assert.ok((await killed.ended) instanceof Error)
}))
