// The JavaScript client as it works in a page of another origin: its browser half over a fetch that enforces CORS as a browser does
// (Fetch standard §3.3, §4.8, §4.10), since Node's own does not.
import test from 'node:test'
import assert from 'node:assert/strict'

const ORIGIN = 'https://page.example'
const real = globalThis.fetch
const preflights = new Set()

const simpleType = (value) => /^(application\/x-www-form-urlencoded|multipart\/form-data|text\/plain)(;|$)/i.test(value)

/** Names that a page may send without asking; §2.2.2, as far as this client goes. */
const isSafe = (name, value) => ['accept', 'accept-language', 'content-language'].includes(name) || (name === 'content-type' && simpleType(value))

function allowsOrigin(response) {
  const allowed = response.headers.get('access-control-allow-origin')
  return allowed === '*' || allowed === ORIGIN
}

const list = (headers, name) => (headers.get(name) ?? '').split(',').map((s) => s.trim().toLowerCase()).filter(Boolean)

async function preflight(request, names) {
  const response = await real(request.url, {
    method: 'OPTIONS',
    headers: { origin: ORIGIN, 'access-control-request-method': request.method, ...(names.length && { 'access-control-request-headers': names.join(',') }) },
  })
  preflights.add(`${request.method} ${new URL(request.url).pathname}`)
  const what = `preflight of ${request.method} ${request.url}: ${response.status} ${JSON.stringify([...response.headers])}`
  const methods = list(response.headers, 'access-control-allow-methods'), allowed = list(response.headers, 'access-control-allow-headers')
  if (!response.ok || !allowsOrigin(response)) throw new TypeError(`Failed to fetch (${what})`)
  if (!['GET', 'HEAD', 'POST'].includes(request.method) && !methods.includes(request.method.toLowerCase()) && !methods.includes('*')) throw new TypeError(`method (${what})`)
  for (const name of names) {
    if (!allowed.includes(name) && !(allowed.includes('*') && name !== 'authorization')) throw new TypeError(`header ${name} (${what})`)
  }
}

const READABLE = ['cache-control', 'content-language', 'content-length', 'content-type', 'expires', 'last-modified', 'pragma']

globalThis.fetch = async (input, init) => {
  const request = new Request(input, init?.body instanceof ReadableStream ? { ...init, duplex: 'half' } : init)
  const names = [...request.headers].filter(([n, v]) => !isSafe(n, v)).map(([n]) => n).sort()
  if (names.length || !['GET', 'HEAD', 'POST'].includes(request.method)) await preflight(request, names)
  const headers = new Headers(request.headers)
  headers.set('origin', ORIGIN)
  const response = await real(new Request(request, { headers }))
  if (!allowsOrigin(response)) throw new TypeError(`Failed to fetch: the page may not read the answer of ${request.method} ${request.url}: ${response.status}`)
  const exposed = list(response.headers, 'access-control-expose-headers')
  const readable = new Headers([...response.headers].filter(([n]) => READABLE.includes(n) || exposed.includes(n) || exposed.includes('*')))
  return new Proxy(response, {
    get(target, key) {
      if (key === 'headers') return readable
      const value = Reflect.get(target, key, target)
      return typeof value === 'function' ? value.bind(target) : value
    },
  })
}

const options = { apiKey: process.env.E2B_API_KEY, apiUrl: process.env.E2B_API_URL, sandboxUrl: process.env.E2B_SANDBOX_URL }
globalThis.window = {}
Object.defineProperty(process, 'release', { value: { name: 'a browser' } })
const { Sandbox, SandboxNotFoundError, FileNotFoundError, AuthenticationError, CommandExitError } = await import('e2b')

test('a page creates, uses and kills a sandbox', async () => {
  const sandbox = await Sandbox.create('base', { ...options, metadata: { page: 'yes' } })
  const out = []
  const r = await sandbox.commands.run('echo from a page; exit 3', { onStdout: (d) => out.push(d), user: 'root' }).catch((e) => e)
  assert.ok(r instanceof CommandExitError, String(r))
  assert.deepEqual([out.join(''), r.exitCode], ['from a page\n', 3])
  await sandbox.files.write('from page', new Blob(['text']))
  await sandbox.files.write('octets', 'x', { useOctetStream: true, metadata: { of: 'a page' } })
  assert.equal(await sandbox.files.read('from page'), 'text')
  assert.deepEqual((await sandbox.files.list('.')).map((e) => e.name).filter((n) => !n.startsWith('.')), ['from page', 'octets'])
  await assert.rejects(sandbox.files.read('nowhere'), FileNotFoundError)
  const seen = []
  const watch = await sandbox.files.watchDir('.', (e) => { seen.push(e.name) })
  await sandbox.files.write('watched', '1')
  for (const end = Date.now() + 120_000; !seen.includes('watched');) {
    assert.ok(Date.now() < end, 'no event')
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
  await watch.stop()
  assert.equal(await sandbox.isRunning(), true)
  assert.equal(await sandbox.kill(), true)
  assert.equal(await sandbox.isRunning(), false)
  await assert.rejects(sandbox.getInfo(), SandboxNotFoundError)
  // Not one of them went without asking.
  for (const asked of ['POST /v2/sandboxes', 'POST /process.Process/Start', 'POST /files', 'POST /filesystem.Filesystem/WatchDir', 'GET /health'])
    assert.ok(preflights.has(asked), `${asked}: ${[...preflights]}`)
})

test('a page reads the next pages of a list (cases.md 37)', async () => {
  const made = await Promise.all([1, 2, 3].map(() => Sandbox.create('base', { ...options, metadata: { pages: 'of a page' } })))
  const pages = Sandbox.list({ ...options, query: { metadata: { pages: 'of a page' } }, limit: 2 })
  const seen = []
  while (pages.hasNext) seen.push(...(await pages.nextItems()))
  assert.deepEqual(seen.map((s) => s.sandboxId).sort(), made.map((s) => s.sandboxId).sort())
  await Promise.all(made.map((s) => s.kill()))
})

test('a page is told why it is refused', async () => {
  await assert.rejects(Sandbox.create('base', { ...options, apiKey: 'e2b_0000' }), AuthenticationError)
  await assert.rejects(Sandbox.create('no-such-template', options), /no-such-template.*not found/)
})
