// Drives one version of a published JavaScript client through the calls of calls.py; one JSON line a call on the standard output.
// test_clients.py imports it beside the client, in the directory of the client's environment; E2B_API_URL and its likes name the server.
import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { request } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

class Absent extends Error {}
class Refused extends Error {}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

async function until(condition, what, ms = 120_000) {
  for (const end = Date.now() + ms; ;) {
    const value = await condition()
    if (value) return value
    assert.ok(Date.now() < end, `waited for: ${what}`)
    await sleep(20)
  }
}

/** Asks for something this server does not serve: the client's error goes to the test as it is. */
async function refused(ask) {
  let answer
  try {
    answer = await ask()
  } catch (e) {
    throw new Refused(e.message)
  }
  assert.fail(`not refused: ${JSON.stringify(answer)}`)
}

/** A plain request to a port of a sandbox by its host name, with no header of the client's. No resolver knows that name here: the
 * address is the server's, the name goes into the Host header. */
const plain = (sandbox, port, path, options = {}, body = '') => new Promise((resolve, reject) => {
  request(new URL(path, process.env.E2B_API_URL), { ...options, headers: { host: sandbox.getHost(port), ...options.headers } }, (r) => {
    let text = ''
    r.on('data', (d) => (text += d)).on('end', () => resolve({ status: r.statusCode, text })).on('error', reject)
  }).on('error', reject).end(body)
})
const signed = (sandbox, url, options, body) => plain(sandbox, 49983, new URL(url).pathname + new URL(url).search, options, body)

const need = (condition, what) => {
  if (!condition) throw new Absent(what)
}

export function calls(sdk, version) {
  const { Sandbox } = sdk
  const [, minor] = version.split('.').map(Number)
  /** A template of a name of its own, from a directory of its own; both are gone afterwards. */
  const built = async (body) => {
    need(sdk.Template?.build, 'Template.build')
    const name = unique().replaceAll('.', '-')
    const directory = mkdtempSync(join(tmpdir(), 'cubicle-built-'))
    try {
      return await body(name, directory)
    } finally {
      rmSync(directory, { recursive: true })
      await fetch(`${process.env.E2B_API_URL}/templates/${name}?force=true`, { method: 'DELETE', headers: { 'X-API-KEY': process.env.E2B_API_KEY } })
    }
  }
  const unique = () => `js-${version}-${randomBytes(6).toString('hex')}`
  let shared

  /** One sandbox for all calls that do not hurt it. */
  const box = async () => (shared ??= await Sandbox.create('base', { timeoutMs: 600_000 }))
  const own = (body, options) => async () => {
    const sandbox = await Sandbox.create('base', options)
    try {
      await body(sandbox)
    } finally {
      await sandbox.kill()
    }
  }
  const isRefused = async (sandbox, address) => (await sandbox.commands.run(`curl -s -m 60 http://${address}/ || echo $?`)).stdout === '7\n'
  const on = (body) => async () => body(await box())
  const isA = (...classes) => (e) => classes.some((c) => c && e instanceof c) || assert.fail(`${e.constructor.name}: ${e.message}`)
  const is = (what, error, ...classes) => assert.rejects(what, isA(error, ...classes))

  /** Starts a process and writes a file: what alive() must tell after a pause. */
  const living = async (sandbox) => {
    await sandbox.files.write('kept', 'over the pause')
    await sandbox.commands.run('sleep 4321', { background: true, timeoutMs: 0 })
    return until(async () => { const now = await alive(sandbox); return now[1] !== 'gone' && now }, 'the process')
  }
  const alive = async (sandbox) => {
    const { stdout } = await sandbox.commands.run("cat kept; echo; pgrep -fx 'sleep 4321' || echo gone; cat /proc/sys/kernel/random/boot_id")
    return stdout.split('\n')
  }
  const bootedAnew = ([file, process, boot], [fileNow, processNow, bootNow]) => {
    assert.deepEqual([fileNow, processNow], [file, 'gone'])
    assert.match(process, /^[0-9]+$/)
    assert.notEqual(bootNow, boot)
  }

  return {
    // Sandboxes
    create: async () => {
      const tag = unique()
      const sandbox = await Sandbox.create('base', { metadata: { tag }, envs: { GREETING: 'hello there' }, timeoutMs: 123_000 })
      assert.match(sandbox.sandboxId, /^i[a-z0-9]{20}$/)
      assert.equal((await sandbox.commands.run('echo $GREETING $E2B_SANDBOX')).stdout, 'hello there true\n')
      const info = await sandbox.getInfo()
      assert.deepEqual(info.metadata, { tag })
      const seconds = (info.endAt - info.startedAt) / 1000
      assert.ok(seconds > 122 && seconds < 124, `${seconds} s`)
      await sandbox.kill()
    },
    'create with an idempotency key': async () => need(minor > 51, 'idempotencyKey'),
    'create without a template': async () => {
      const sandbox = await Sandbox.create()
      assert.equal((await sandbox.commands.run('echo hi')).stdout, 'hi\n')
      await sandbox.kill()
    },
    connect: on(async (sandbox) => {
      const again = await Sandbox.connect(sandbox.sandboxId)
      await sandbox.files.write('/tmp/shared', 'one')
      assert.equal(await again.files.read('/tmp/shared'), 'one')
      assert.equal((await again.commands.run('cat /tmp/shared')).stdout, 'one')
    }),
    'connect keeps the deadline': own(async (sandbox) => {
      const end = async () => (await Sandbox.getInfo(sandbox.sandboxId)).endAt.getTime()
      const first = await end()
      await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 10_000 })
      assert.equal(await end(), first)
      await sandbox.connect({ timeoutMs: 900_000 })
      assert.ok((await end()) > first)
    }, { timeoutMs: 100_000 }),
    'get info': on(async (sandbox) => {
      const info = await Sandbox.getInfo(sandbox.sandboxId)
      assert.equal(info.sandboxId, sandbox.sandboxId)
      assert.equal(info.name, 'base')
      assert.equal(info.state, 'running')
      assert.ok(info.cpuCount >= 1 && info.memoryMB >= 128)
      assert.ok(info.startedAt instanceof Date && info.endAt > info.startedAt)
      assert.match(info.envdVersion, /^\d+\.\d+\.\d+$/)
    }),
    list: async () => {
      // cases.md 35: each goes through three layers of encoding.
      const tag = unique()
      const all = [{ 'team name': 'blue/green' }, { k: '100%' }, { k: 'a=b&c' }, { k: '+ +' }, { k: '日本' }, { '': 'x' }, { 'the key': '&=ü%25+/#?' }]
        .map((metadata) => ({ ...metadata, tag }))
      const made = await Promise.all(all.map((metadata) => Sandbox.create('base', { metadata })))
      for (const [i, metadata] of all.entries()) {
        const found = await Sandbox.list({ query: { metadata } }).nextItems()
        assert.deepEqual(found.map((s) => [s.sandboxId, s.metadata]), [[made[i].sandboxId, metadata]])
      }
      await Promise.all(made.map((s) => s.kill()))
    },
    'list by pages': async () => {
      const tag = unique()
      const made = await Promise.all([1, 2, 3].map(() => Sandbox.create('base', { metadata: { tag } })))
      const pages = Sandbox.list({ query: { metadata: { tag } }, limit: 2 })
      const sizes = [], seen = []
      while (pages.hasNext) {
        const items = await pages.nextItems()
        sizes.push(items.length)
        seen.push(...items.map((s) => s.sandboxId))
      }
      assert.deepEqual(sizes, [2, 1])
      assert.deepEqual(seen.sort(), made.map((s) => s.sandboxId).sort())
      await Promise.all(made.map((s) => s.kill()))
    },
    'list by state': async () => {
      const tag = unique()
      const made = await Sandbox.create('base', { metadata: { tag } })
      assert.equal((await Sandbox.list({ query: { metadata: { tag }, state: ['running'] } }).nextItems()).length, 1)
      assert.equal((await Sandbox.list({ query: { metadata: { tag }, state: ['paused'] } }).nextItems()).length, 0)
      await made.kill()
    },
    'set timeout': own(async (sandbox) => {
      const end = async () => (await sandbox.getInfo()).endAt.getTime()
      const first = await end()
      await sandbox.setTimeout(800_000)
      assert.ok((await end()) > first + 300_000)
      await Sandbox.setTimeout(sandbox.sandboxId, 30_000)
      assert.ok((await end()) < first)
    }),
    'is running': own(async (sandbox) => {
      assert.equal(await sandbox.isRunning(), true)
      await sandbox.kill()
      assert.equal(await sandbox.isRunning(), false)
    }),
    kill: async () => {
      const sandbox = await Sandbox.create('base')
      // Older ones return nothing.
      assert.deepEqual([await sandbox.kill(), await sandbox.kill()], minor < 45 ? [undefined, undefined] : [true, false])
    },
    'kill by id': async () => {
      const sandbox = await Sandbox.create('base')
      assert.equal(await Sandbox.kill(sandbox.sandboxId), true)
      assert.equal(await Sandbox.kill(sandbox.sandboxId), false)
      assert.equal(await Sandbox.kill('sdk-x-does-not-exist'), false)
    },
    host: on(async (sandbox) => {
      await sandbox.files.write('/tmp/www/index.html', 'from inside')
      const server = await sandbox.commands.run('python3 -m http.server 8123', { cwd: '/tmp/www', background: true })
      const host = sandbox.getHost(8123)
      assert.match(host, new RegExp(`^8123-${sandbox.sandboxId}\\.`))
      const answer = await until(async () => { const a = await plain(sandbox, 8123, '/'); return a.status !== 502 && a }, 'the server inside')
      assert.deepEqual(answer, { status: 200, text: 'from inside' })
      await server.kill()
    }),
    'template exists': async () => {
      need(sdk.Template?.exists, 'Template.exists')
      assert.equal(await sdk.Template.exists('base'), true)
      assert.equal(await sdk.Template.exists('no-such-template'), false)
    },

    // Commands
    run: on(async (sandbox) => {
      const r = await sandbox.commands.run('echo out; echo err >&2')
      assert.deepEqual([r.stdout, r.stderr, r.exitCode], ['out\n', 'err\n', 0])
    }),
    'run with environment, directory, user': on(async (sandbox) => {
      const r = await sandbox.commands.run('echo "$A"; pwd; whoami', { envs: { A: 'a=b\nc "d"' }, cwd: '/tmp', user: 'root' })
      assert.equal(r.stdout, 'a=b\nc "d"\n/tmp\nroot\n')
      assert.equal((await sandbox.commands.run('pwd; whoami')).stdout, '/home/user\nuser\n')
    }),
    'run with callbacks': on(async (sandbox) => {
      // The command goes on only when its first line was seen.
      const out = [], err = []
      await sandbox.commands.run('echo first; while ! [ -e /tmp/go ]; do sleep 0.05; done; echo ü日 ; echo last >&2', {
        onStdout: async (d) => { out.push(d); if (out.length === 1) await sandbox.files.write('/tmp/go', '') },
        onStderr: (d) => { err.push(d) },
      })
      assert.equal(out.join(''), 'first\nü日\n')
      assert.equal(err.join(''), 'last\n')
    }),
    'run large output': on(async (sandbox) => {
      const r = await sandbox.commands.run('seq 600000')
      const want = Array.from({ length: 600_000 }, (_, i) => `${i + 1}\n`).join('')
      assert.ok(r.stdout === want, `${r.stdout.length} bytes of ${want.length}`)
    }),
    'exit code': on(async (sandbox) => {
      await assert.rejects(sandbox.commands.run('echo out; echo err >&2; exit 3'),
        (e) => e instanceof sdk.CommandExitError && e.exitCode === 3 && e.stdout === 'out\n' && e.stderr === 'err\n')
    }),
    background: on(async (sandbox) => {
      const handle = await sandbox.commands.run('sleep 0.2; echo done', { background: true })
      assert.ok(handle.pid > 0)
      assert.equal((await handle.wait()).stdout, 'done\n')
    }),
    stdin: on(async (sandbox) => {
      const handle = await sandbox.commands.run('cat', { background: true, stdin: true })
      for (let i = 0; i < 50; i++) await sandbox.commands.sendStdin(handle.pid, `line ${i} ü\n`)
      if (sandbox.commands.closeStdin) await sandbox.commands.closeStdin(handle.pid)
      else await handle.kill()
      const r = await handle.wait().catch((e) => e)
      assert.equal(r.stdout, Array.from({ length: 50 }, (_, i) => `line ${i} ü\n`).join(''))
    }),
    'stream input': on(async (sandbox) => {
      need(sandbox.commands.streamInput, 'streamInput')
      assert.fail('this version has it: drive it')
    }),
    'list commands': on(async (sandbox) => {
      const handle = await sandbox.commands.run('sleep 1000', { background: true, cwd: '/tmp', envs: { A: 'b' } })
      const entry = (await sandbox.commands.list()).find((p) => p.pid === handle.pid)
      assert.equal(entry.cmd, '/bin/bash')
      assert.deepEqual(entry.args, ['-l', '-c', 'sleep 1000'])
      assert.equal(entry.cwd, '/tmp')
      assert.equal(entry.envs.A, 'b')
      await handle.kill()
    }),
    'connect to a command': on(async (sandbox) => {
      const handle = await sandbox.commands.run('while ! [ -e /tmp/seen ]; do sleep 0.05; done; echo seen by the second', { background: true })
      await handle.disconnect()
      const again = await sandbox.commands.connect(handle.pid)
      await sandbox.files.write('/tmp/seen', '')
      const r = await again.wait()
      assert.deepEqual([r.exitCode, r.stdout], [0, 'seen by the second\n'])
    }),
    'kill a command': on(async (sandbox) => {
      const handle = await sandbox.commands.run('sleep 1000', { background: true })
      const ended = handle.wait().catch((e) => e)
      assert.equal(await sandbox.commands.kill(handle.pid), true)
      await is(sandbox.commands.run(`kill -0 ${handle.pid}`), sdk.CommandExitError)
      assert.equal(await sandbox.commands.kill(handle.pid), false)
      assert.match(String((await ended).error ?? (await ended).message), /killed/)
    }),
    'command timeout': on(async (sandbox) => {
      await is(sandbox.commands.run('sleep 777', { timeoutMs: 1000 }), sdk.TimeoutError)
      await until(async () => !(await sandbox.commands.run("pgrep -fx 'sleep 777' || true")).stdout, 'the end of the command')
    }),
    'hundred commands at once': on(async (sandbox) => {
      const all = await Promise.all(Array.from({ length: 100 }, (_, i) => sandbox.commands.run(`echo ${i}`)))
      assert.deepEqual(all.map((r) => r.stdout), all.map((_, i) => `${i}\n`))
    }),

    // Terminals
    pty: on(async (sandbox) => {
      let text = ''
      const pty = await sandbox.pty.create({ cols: 80, rows: 24, envs: { P: 'q' }, onData: (d) => { text += Buffer.from(d).toString() } })
      await sandbox.pty.sendInput(pty.pid, new TextEncoder().encode('stty size; echo "<$P>" $TERM; exit 7\n'))
      const r = await pty.wait().catch((e) => e)
      assert.equal(r.exitCode, 7)
      assert.match(text, /24 80/)
      assert.match(text, /<q> xterm-256color/)
    }),
    'resize a pty': on(async (sandbox) => {
      let text = ''
      const pty = await sandbox.pty.create({ cols: 80, rows: 24, onData: (d) => { text += Buffer.from(d).toString() } })
      await sandbox.pty.resize(pty.pid, { cols: 123, rows: 45 })
      await sandbox.pty.sendInput(pty.pid, new TextEncoder().encode('stty size; exit\n'))
      assert.equal((await pty.wait()).exitCode, 0)
      assert.match(text, /45 123/)
    }),
    'connect to a pty': on(async (sandbox) => {
      need(sandbox.pty.connect, 'pty.connect')
      let text = ''
      const pty = await sandbox.pty.create({ cols: 80, rows: 24, onData: () => {} })
      const again = await sandbox.pty.connect(pty.pid, { onData: (d) => { text += Buffer.from(d).toString() } })
      await sandbox.pty.sendInput(pty.pid, new TextEncoder().encode('echo to $((40+2)); exit\n'))
      assert.equal((await again.wait()).exitCode, 0)
      assert.match(text, /to 42/)
    }),
    'kill a pty': on(async (sandbox) => {
      const pty = await sandbox.pty.create({ cols: 80, rows: 24, onData: () => {} })
      const ended = pty.wait().catch((e) => e)
      assert.equal(await sandbox.pty.kill(pty.pid), true)
      assert.equal(await sandbox.pty.kill(pty.pid), false)
      await ended
    }),

    // Files
    'write and read': on(async (sandbox) => {
      for (const name of ['plain', 'a b', 'q"uote', 'per%41cent', 'ü-é', 'a+b#c?d', '-dash', 'x'.repeat(255)]) {
        const bytes = randomBytes(70_000)
        const info = await sandbox.files.write(`names/${name}`, new Blob([bytes]))
        assert.equal(info.path, `/home/user/names/${name}`)
        assert.deepEqual(Buffer.from(await sandbox.files.read(`names/${name}`, { format: 'bytes' })), bytes)
      }
      await sandbox.files.write('text', 'Ünï\n')
      assert.equal(await sandbox.files.read('text'), 'Ünï\n')
      await sandbox.files.write('empty', '')
      assert.equal(await sandbox.files.read('empty'), '')
      assert.equal((await sandbox.files.read('empty', { format: 'bytes' })).length, 0)
      if (minor >= 45) assert.equal((await sandbox.files.read('empty', { format: 'blob' })).size, 0)
      assert.match(await sandbox.files.read('/proc/version', { format: 'text' }), /Linux/)
    }),
    'write many': on(async (sandbox) => {
      const files = [{ path: 'many/1', data: '1' }, { path: '/tmp/many/ü 2', data: new Blob(['2']) }]
      assert.deepEqual((await sandbox.files.write(files)).map((w) => w.path), ['/home/user/many/1', '/tmp/many/ü 2'])
      assert.equal(await sandbox.files.read('/tmp/many/ü 2'), '2')
    }),
    'write a stream': on(async (sandbox) => {
      const block = randomBytes(1 << 20), hash = createHash('sha256')
      let left = 64
      await sandbox.files.write('streamed', new ReadableStream({
        pull(to) {
          if (left-- === 0) return to.close()
          hash.update(block)
          to.enqueue(block)
        },
      }))
      assert.equal((await sandbox.commands.run('sha256sum < streamed')).stdout.slice(0, 64), hash.digest('hex'))
    }),
    'read a stream': on(async (sandbox) => {
      const want = (await sandbox.commands.run('head -c 16777216 /dev/urandom > big; sha256sum < big')).stdout.slice(0, 64)
      const hash = createHash('sha256')
      for await (const part of await sandbox.files.read('big', { format: 'stream' })) hash.update(part)
      assert.equal(hash.digest('hex'), want)
    }),
    'write gzip': on(async (sandbox) => {
      const text = 'compress me '.repeat(50_000)
      await sandbox.files.write('zipped', text, { gzip: true })
      assert.equal((await sandbox.commands.run('wc -c < zipped')).stdout.trim(), String(text.length))
      assert.equal(await sandbox.files.read('zipped', { gzip: true }), text)
    }),
    'write as octet stream': on(async (sandbox) => {
      const bytes = randomBytes(300_000)
      await sandbox.files.write('octets', new Blob([bytes]), { useOctetStream: true })
      assert.deepEqual(Buffer.from(await sandbox.files.read('octets', { format: 'bytes' })), bytes)
    }),
    'file metadata': on(async (sandbox) => {
      need(minor >= 30, 'metadata')
      const written = await sandbox.files.write('meta', 'x', { metadata: { Author: 'me', purpose: 'a test' } })
      assert.deepEqual(written.metadata, { author: 'me', purpose: 'a test' })
      assert.deepEqual((await sandbox.files.getInfo('meta')).metadata, { author: 'me', purpose: 'a test' })
      await sandbox.files.write('meta', 'y')
      assert.equal((await sandbox.files.getInfo('meta')).metadata, undefined)
    }),
    'list files': on(async (sandbox) => {
      for (const name of ['tree/b', 'tree/a/z', 'tree/a/y/x', 'tree/a-b']) await sandbox.files.write(name, name)
      const one = await sandbox.files.list('tree')
      assert.deepEqual(one.map((e) => [e.name, e.type]), [['a', 'dir'], ['a-b', 'file'], ['b', 'file']])
      const deep = await sandbox.files.list('tree', { depth: 3 })
      assert.deepEqual(deep.map((e) => e.path.slice(16)), ['a', 'a/y', 'a/y/x', 'a/z', 'a-b', 'b'])
    }),
    'file info': on(async (sandbox) => {
      await sandbox.files.write('info', '12345')
      await sandbox.commands.run('chmod 640 info; ln -sf info link')
      const info = await sandbox.files.getInfo('info')
      assert.deepEqual([info.name, info.path, info.type, info.size, info.mode, info.permissions, info.owner, info.group],
        ['info', '/home/user/info', 'file', 5, 0o640, '-rw-r-----', 'user', 'user'])
      assert.ok(info.modifiedTime instanceof Date)
      const link = await sandbox.files.getInfo('link')
      assert.deepEqual([link.name, link.symlinkTarget], ['link', '/home/user/info'])
    }),
    exists: on(async (sandbox) => {
      await sandbox.files.write('here', '')
      assert.deepEqual(await Promise.all(['here', '/tmp', 'nowhere'].map((p) => sandbox.files.exists(p))), [true, true, false])
    }),
    'make a directory': on(async (sandbox) => {
      assert.equal(await sandbox.files.makeDir('made/deep'), true)
      assert.equal(await sandbox.files.makeDir('made/deep'), false)
    }),
    rename: on(async (sandbox) => {
      await sandbox.files.write('old name', 'kept')
      const entry = await sandbox.files.rename('old name', 'new dir/new name')
      assert.equal(entry.path, '/home/user/new dir/new name')
      assert.equal(await sandbox.files.read('new dir/new name'), 'kept')
      assert.equal(await sandbox.files.exists('old name'), false)
    }),
    remove: on(async (sandbox) => {
      await sandbox.files.write('away/with/it', '')
      await sandbox.files.remove('away')
      assert.equal(await sandbox.files.exists('away'), false)
      await sandbox.files.remove('away')
    }),
    'files as another user': on(async (sandbox) => {
      const info = await sandbox.files.write('roots', 'x', { user: 'root' })
      assert.equal(info.path, '/root/roots')
      assert.equal((await sandbox.files.getInfo('roots', { user: 'root' })).owner, 'root')
      await sandbox.files.makeDir('rootsdir', { user: 'root' })
      assert.equal((await sandbox.commands.run('stat -c %U /root/rootsdir', { user: 'root' })).stdout, 'root\n')
    }),
    watch: on(async (sandbox) => {
      await sandbox.files.makeDir('watched')
      const seen = []
      const has = (type, name) => until(() => seen.some((e) => e.type === type && e.name === name), `${type} ${name}: ${JSON.stringify(seen)}`)
      const handle = await sandbox.files.watchDir('watched', (e) => { seen.push(e) })
      await sandbox.files.write('watched/f', '1')
      await has('create', 'f')
      await has('write', 'f')
      await sandbox.commands.run('chmod 600 watched/f; mv watched/f watched/g; rm watched/g')
      await has('chmod', 'f')
      await has('rename', 'f')
      await has('create', 'g')
      await has('remove', 'g')
      await handle.stop()
      const n = seen.length
      await sandbox.files.write('watched/late', '')
      await sandbox.commands.run('sync')
      assert.equal(seen.length, n)
    }),
    'watch recursively': on(async (sandbox) => {
      await sandbox.files.makeDir('deep')
      const seen = []
      const handle = await sandbox.files.watchDir('deep', (e) => { seen.push(e) }, { recursive: true })
      await sandbox.commands.run('mkdir -p deep/later/still && echo x > deep/later/still/file')
      await until(() => seen.some((e) => e.name === 'later/still/file'), `the file: ${JSON.stringify(seen)}`)
      await handle.stop()
    }),
    'watch with entries': on(async (sandbox) => {
      need(minor >= 30, 'includeEntry')
      await sandbox.files.makeDir('entries')
      const seen = []
      const handle = await sandbox.files.watchDir('entries', (e) => { seen.push(e) }, { includeEntry: true })
      await sandbox.files.write('entries/f', '123')
      const event = await until(() => seen.find((e) => e.type === 'write' && e.entry), 'an event with its entry')
      assert.deepEqual([event.entry.name, event.entry.path, event.entry.type], ['f', '/home/user/entries/f', 'file'])
      await handle.stop()
    }),
    'signed download': on(async (sandbox) => {
      await sandbox.files.write('to sign ü', 'signed')
      const url = await sandbox.downloadUrl('to sign ü', { useSignatureExpiration: 60 })
      assert.deepEqual(await signed(sandbox, url), { status: 200, text: 'signed' })
    }),
    'signed upload': on(async (sandbox) => {
      const url = await sandbox.uploadUrl('uploaded', { useSignatureExpiration: 60 })
      const form = new FormData()
      form.append('file', 'by form')
      const { headers, body } = new Request('http://form', { method: 'POST', body: form, duplex: 'half' })
      const bytes = Buffer.from(await new Response(body).arrayBuffer())
      const r = await signed(sandbox, url, { method: 'POST', headers: { 'content-type': headers.get('content-type') } }, bytes)
      assert.equal(r.status, 200)
      assert.equal(await sandbox.files.read('uploaded'), 'by form')
    }),
    'signed URL that expired': on(async (sandbox) => {
      await sandbox.files.write('late', 'x')
      const url = await sandbox.downloadUrl('late', { useSignatureExpiration: -10 })
      assert.equal((await signed(sandbox, url)).status, 401)
    }),
    'signed URL of another path': on(async (sandbox) => {
      const url = (await sandbox.downloadUrl('mine', {})).replace('mine', 'yours')
      assert.equal((await signed(sandbox, url)).status, 401)
    }),

    // Git
    git: on(async (sandbox) => {
      need(sandbox.git, 'git')
      const repo = '/home/user/repo'
      await sandbox.git.init(repo, { initialBranch: 'trunk' })
      await sandbox.files.write(`${repo}/a file`, '1')
      assert.equal((await sandbox.git.status(repo)).untrackedCount, 1)
      await sandbox.git.add(repo)
      await sandbox.git.commit(repo, 'first', { authorName: 'A', authorEmail: 'a@b.example' })
      assert.equal((await sandbox.git.status(repo)).isClean, true)
      assert.equal((await sandbox.git.branches(repo)).currentBranch, 'trunk')
    }),

    // Errors
    'no such sandbox': async () => {
      const id = 'i' + '0'.repeat(20)
      await is(Sandbox.getInfo(id), sdk.SandboxNotFoundError)
      await is(Sandbox.setTimeout(id, 1000), sdk.SandboxNotFoundError)
      await is(Sandbox.connect(id), sdk.SandboxNotFoundError)
    },
    'no such template': async () => {
      await assert.rejects(Sandbox.create('no-such-template'), /404.*no-such-template.*not found/s)
    },
    'wrong key': async () => {
      await is(Sandbox.create('base', { apiKey: 'e2b_' + '0'.repeat(40) }), sdk.AuthenticationError)
      await is(Sandbox.list({ apiKey: 'e2b_' + '0'.repeat(40) }).nextItems(), sdk.AuthenticationError)
    },
    'bad timeout': async () => {
      await assert.rejects(Sandbox.create('base', { timeoutMs: 0 }), /400.*[Tt]imeout/s)
    },
    'no such file': on(async (sandbox) => {
      await is(sandbox.files.read('nope'), sdk.FileNotFoundError, sdk.NotFoundError)
      await is(sandbox.files.read('nope', { format: 'stream' }), sdk.FileNotFoundError, sdk.NotFoundError)
      await is(sandbox.files.list('nope'), sdk.FileNotFoundError, sdk.NotFoundError)
      await is(sandbox.files.rename('nope', 'nowhere'), sdk.FileNotFoundError, sdk.NotFoundError)
      await is(sandbox.files.getInfo('nope'), sdk.FileNotFoundError, sdk.NotFoundError)
      await is(sandbox.files.watchDir('nope', () => {}), sdk.FileNotFoundError, sdk.NotFoundError)
    }),
    'not a directory': on(async (sandbox) => {
      await is(sandbox.files.list('/etc/passwd'), sdk.InvalidArgumentError)
    }),
    'no such command': on(async (sandbox) => {
      await is(sandbox.commands.connect(99_999_999), sdk.NotFoundError)
      await is(sandbox.commands.sendStdin(99_999_999, 'x'), sdk.NotFoundError)
    }),
    'no such user': on(async (sandbox) => {
      await is(sandbox.commands.run('true', { user: 'nobody-here' }), sdk.AuthenticationError)
      await is(sandbox.files.read('x', { user: 'nobody-here' }), sdk.AuthenticationError)
    }),
    'no such directory': on(async (sandbox) => {
      await assert.rejects(sandbox.commands.run('true', { cwd: '/no/such' }), (e) => isA(sdk.InvalidArgumentError)(e) && /\/no\/such/.test(e.message))
    }),
    'no space': on(async (sandbox) => {
      // The file system of devices is one of 64 KiB.
      await is(sandbox.files.write('/dev/more', 'x'.repeat(100_000), { user: 'root' }), sdk.NotEnoughSpaceError)
      await sandbox.files.remove('/dev/more', { user: 'root' })
    }),
    'killed meanwhile': async () => {
      const sandbox = await Sandbox.create('base')
      let failure
      await new Promise((started) => {
        sandbox.commands.run('echo on; sleep 60', { onStdout: started }).then(() => { failure = 'no error' }, (e) => { failure = e })
      })
      await sandbox.kill()
      const e = await until(() => failure, 'the end of the command')
      if (minor >= 45) isA(sdk.TimeoutError)(e)
      else assert.ok(e instanceof Error, String(e))
    },
    'use after kill': async () => {
      const sandbox = await Sandbox.create('base')
      await sandbox.kill()
      await is(sandbox.commands.run('true'), sdk.SandboxNotFoundError, sdk.TimeoutError)
      await is(sandbox.files.read('/etc/passwd'), sdk.TimeoutError)
      await is(sandbox.files.list('/'), sdk.TimeoutError)
    },

    // Network
    'create with a network policy': own(async (sandbox) => {
      assert.ok(await isRefused(sandbox, '203.0.113.7'))
      const { network } = await sandbox.getInfo()
      assert.deepEqual([network.allowOut, network.denyOut], [['203.0.113.8'], ['203.0.113.0/24']])
    }, { network: { allowOut: ['203.0.113.8'], denyOut: ['203.0.113.0/24'] } }),
    'update network': own(async (sandbox) => {
      need(sandbox.updateNetwork, 'updateNetwork')
      await sandbox.updateNetwork({ allowOut: ['203.0.113.8'], denyOut: ['203.0.113.7'] })
      assert.ok(await isRefused(sandbox, '203.0.113.7'))
      await sandbox.updateNetwork({ allowInternetAccess: false })
      assert.ok(await isRefused(sandbox, '203.0.113.8'))
      const { network, allowInternetAccess } = await sandbox.getInfo()
      assert.deepEqual([network.allowOut, network.denyOut, allowInternetAccess], [undefined, undefined, false])
    }),

    // Pause, snapshots, forks
    pause: own(async (sandbox) => {
      const { startedAt } = await sandbox.getInfo()
      // Older ones return nothing when they give up.
      assert.ok(await sandbox.pause())
      assert.ok(!await Sandbox.pause(sandbox.sandboxId))
      const info = await sandbox.getInfo()
      assert.equal(info.state, 'paused')
      assert.ok(info.endAt > startedAt && info.endAt <= Date.now() + 1000)
      const paused = await Sandbox.list({ query: { state: ['paused'] } }).nextItems()
      assert.deepEqual(paused.filter((s) => s.sandboxId === sandbox.sandboxId).map((s) => s.state), ['paused'])
      assert.equal(await sandbox.isRunning(), false)
      await assert.rejects(sandbox.commands.run('true'), Error)
    }),
    resume: own(async (sandbox) => {
      const before = await living(sandbox)
      await sandbox.pause()
      const again = await Sandbox.connect(sandbox.sandboxId)
      assert.deepEqual(await alive(again), before)
      assert.equal((await sandbox.connect()).sandboxId, sandbox.sandboxId)
      assert.deepEqual(await alive(sandbox), before)
    }),
    'pause without memory': own(async (sandbox) => {
      need(minor >= 45, 'keepMemory')
      const before = await living(sandbox)
      await sandbox.pause({ keepMemory: false })
      bootedAnew(before, await alive(await sandbox.connect()))
    }),
    'resume anew': own(async (sandbox) => {
      need(minor >= 51, 'onResume')
      const before = await living(sandbox)
      await sandbox.pause()
      bootedAnew(before, await alive(await sandbox.connect({ onResume: 'reboot' })))
    }),
    'kill a paused sandbox': async () => {
      const sandbox = await Sandbox.create('base')
      await sandbox.pause()
      assert.equal(await Sandbox.kill(sandbox.sandboxId), true)
      assert.equal(await Sandbox.kill(sandbox.sandboxId), false)
    },
    'auto-pause': own(async (sandbox) => {
      assert.deepEqual((await sandbox.getInfo()).lifecycle, { autoResume: false, onTimeout: 'pause' })
      const before = await living(sandbox)
      await sandbox.setTimeout(0)
      await until(async () => (await sandbox.getInfo()).state === 'paused', 'the pause')
      assert.deepEqual(await alive(await Sandbox.connect(sandbox.sandboxId)), before)
    }, { lifecycle: { onTimeout: 'pause' } }),
    'auto-resume': own(async (sandbox) => {
      const before = await living(sandbox)
      await sandbox.pause()
      assert.deepEqual(await alive(sandbox), before)
      assert.equal((await sandbox.getInfo()).state, 'running')
    }, { lifecycle: { onTimeout: 'pause', autoResume: true } }),
    snapshot: own(async (sandbox) => {
      await sandbox.files.write('kept', 'in the snapshot')
      const snapshot = await sandbox.createSnapshot()
      await sandbox.files.write('kept', 'later')
      assert.equal((await sandbox.getInfo()).state, 'running')
      assert.deepEqual((await sandbox.listSnapshots().nextItems()).map((s) => s.snapshotId), [snapshot.snapshotId])
      assert.ok((await Sandbox.listSnapshots().nextItems()).some((s) => s.snapshotId === snapshot.snapshotId))
      const made = await Sandbox.create(snapshot.snapshotId)
      assert.equal(await made.files.read('kept'), 'in the snapshot')
      assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), true)
      assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), false)
      assert.deepEqual(await sandbox.listSnapshots().nextItems(), [])
      assert.equal(await made.files.read('kept'), 'in the snapshot')
      await made.kill()
      await assert.rejects(Sandbox.create(snapshot.snapshotId), /404.*template.*not found/s)
    }),
    'snapshot with a name': own(async (sandbox) => {
      const name = `matrix/${unique().replaceAll('.', '-')}:v1`
      await sandbox.files.write('kept', 'by name')
      const snapshot = await sandbox.createSnapshot({ name })
      assert.deepEqual(snapshot.names, [name])
      const made = await Sandbox.create(name)
      assert.equal(await made.files.read('kept'), 'by name')
      assert.equal(await sdk.Template.exists(name), true)
      await made.kill()
      assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), true)
    }),
    fork: own(async (sandbox) => {
      need(sandbox.fork, 'fork')
      await sandbox.files.write('shared', 'of the parent')
      const forks = await sandbox.fork({ count: 2 })
      assert.equal(new Set([sandbox, ...forks].map((f) => f.sandboxId)).size, 3)
      for (const f of forks) {
        assert.equal(await f.files.read('shared'), 'of the parent')
        await f.files.write('shared', 'own')
      }
      assert.equal(await sandbox.files.read('shared'), 'of the parent')
      await Promise.all(forks.map((f) => f.kill()))
      await sandbox.kill()
      await is(sandbox.fork(), sdk.SandboxNotFoundError)
    }),

    // Not served yet
    metrics: on(async (sandbox) => {
      const [first] = await until(async () => { const all = await sandbox.getMetrics(); return all.length && all }, 'a first sample')
      assert.ok(first.cpuCount === 2 && first.cpuUsedPct >= 0 && first.cpuUsedPct <= 100, JSON.stringify(first))
      assert.ok(first.memUsed > 0 && first.memUsed < first.memTotal && first.memTotal === 512 * 1024 * 1024, JSON.stringify(first))
      assert.ok(first.diskUsed > 0 && first.diskUsed < first.diskTotal, JSON.stringify(first))
      if (minor < 45) return // it does not send the times
      const at = first.timestamp.getTime()
      const same = await Sandbox.getMetrics(sandbox.sandboxId, { start: new Date(at - 2000), end: new Date(at + 2000) })
      assert.deepEqual(same.map((m) => m.timestamp.getTime()), [at])
      assert.deepEqual(await sandbox.getMetrics({ end: new Date(at - 3600_000) }), [])
    }),
    'create with a domain rule': () => refused(() => Sandbox.create('base', { network: { allowOut: ['example.com'], denyOut: ['0.0.0.0/0'] } })),
    'create with identity tokens': () => {
      need(minor >= 45, 'iam')
      return refused(() => Sandbox.create('base', { iam: { tokens: { t: { audience: 'a', tokenType: 'JWT-SVID' } } } }))
    },
    'create with a volume': () => refused(() => Sandbox.create('base', { volumeMounts: { '/data': 'no-volume' } })),
    'list volumes': () => {
      need(sdk.Volume?.list, 'Volume.list')
      return refused(() => sdk.Volume.list())
    },
    'list secrets': () => {
      need(sdk.Secret?.list, 'Secret.list')
      return refused(() => sdk.Secret.list().nextItems())
    },
    'build a template': () => built(async (name, directory) => {
      mkdirSync(`${directory}/tree`)
      writeFileSync(`${directory}/tree/.hidden`, 'hidden')
      writeFileSync(`${directory}/one.txt`, 'one')
      const logs = []
      const template = sdk.Template({ fileContextPath: directory }).fromTemplate('base').copy('one.txt', '/srv/').copy('tree', '/srv/tree').setEnvs({ WHO: 'world' })
        .runCmd('echo hello $WHO > /home/user/hello').setStartCmd('touch /tmp/started; exec sleep 1000000', sdk.waitForFile('/tmp/started'))
      await sdk.Template.build(template, { alias: name, onBuildLogs: (entry) => logs.push(entry) })
      assert.ok(logs.length > 2, JSON.stringify(logs))
      assert.equal(await sdk.Template.exists?.(name) ?? true, true)
      const sandbox = await Sandbox.create(name, { timeoutMs: 300_000 })
      const { stdout } = await sandbox.commands.run('cat /srv/one.txt /srv/tree/.hidden ~/hello; ls /tmp/started')
      assert.equal(stdout, 'onehiddenhello world\n/tmp/started\n')
      await sandbox.kill()
    }),
    'template tags': () => built(async (name) => {
      need(sdk.Template.getTags, 'Template.getTags')
      const info = await sdk.Template.build(sdk.Template().fromTemplate('base').runCmd('echo one > ~/which'), `${name}:v1`)
      const given = await sdk.Template.assignTags(`${name}:v1`, ['prod', 'Latest'])
      assert.deepEqual([given.buildId, given.tags.sort()], [info.buildId, ['latest', 'prod']])
      assert.deepEqual((await sdk.Template.getTags(info.templateId)).map((t) => t.tag).sort(), ['latest', 'prod', 'v1'])
      const sandbox = await Sandbox.create(`${name}:prod`, { timeoutMs: 300_000 })
      assert.equal((await sandbox.commands.run('cat which')).stdout, 'one\n')
      await sandbox.kill()
      await sdk.Template.removeTags(name, ['prod'])
      await assert.rejects(Sandbox.create(`${name}:prod`), /404.*not found/s)
      await assert.rejects(sdk.Template.removeTags(name, ['default']), /400/)
      await assert.rejects(sdk.Template.assignTags(':v1', ['x']), /400/)
    }),
    'a build that fails': () => built(async (name) => {
      await assert.rejects(sdk.Template.build(sdk.Template().fromTemplate('base').runCmd('echo one').runCmd('echo gone wrong >&2; exit 7'), { alias: name }),
        (e) => e.constructor.name === 'BuildError' && /7/.test(e.message))
      await assert.rejects(Sandbox.create(name), /404.*not found/s)
    }),

    'the end': async () => {
      if (shared) await shared.kill()
    },
  }
}

/** Runs the named ones of the known calls in that order and writes a line for each. */
export async function drive(known, names) {
  for (const name of names) {
    let result = 'ok', detail = ''
    try {
      if (!known[name]) throw new Error('the driver does not know this call')
      await known[name]()
    } catch (e) {
      result = e instanceof Absent ? 'absent' : e instanceof Refused ? 'refused' : 'failed'
      detail = result === 'failed' ? String(e?.stack ?? e) : e.message
    }
    process.stdout.write(JSON.stringify({ call: name, result, detail }) + '\n')
  }
  await known['the end']()
}
