// The published JavaScript client with E2B_DOMAIN alone, over TLS (run by test_tls.py in a mount namespace with names of its own).
import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import { readFileSync } from 'node:fs'
import { pathToFileURL } from 'node:url'

// The packages are installed beside the other JavaScript tests.
const require = createRequire(process.argv[3])
const { Sandbox } = await import(pathToFileURL(require.resolve('e2b')))
const { WebSocket } = require('undici')
const service = readFileSync(process.argv[2], 'utf8')

const sandbox = await Sandbox.create('base', { timeoutMs: 300_000 })
try {
  assert.equal((await sandbox.commands.run('echo hi')).stdout, 'hi\n')
  await sandbox.files.write('/home/user/a', 'x'.repeat(3_000_000))
  assert.equal((await sandbox.files.read('/home/user/a')).length, 3_000_000)

  const down = await sandbox.downloadUrl('/home/user/a', { useSignatureExpiration: 60 })
  assert.match(down, /^https:\/\/49983-/)
  assert.equal((await (await fetch(down)).text()).length, 3_000_000)
  const form = new FormData()
  form.append('file', new Blob(['signed']), 'b')
  const up = await sandbox.uploadUrl('/home/user/b', { useSignatureExpiration: 60 })
  assert.equal((await fetch(up, { method: 'POST', body: form })).status, 200)
  assert.equal(await sandbox.files.read('/home/user/b'), 'signed')

  await sandbox.files.write('/home/user/service.py', service)
  await sandbox.commands.run('python3 /home/user/service.py', { background: true, timeoutMs: 0 })
  const base = 'https://' + sandbox.getHost(3001)
  let told = await fetch(base + '/hello')
  for (let i = 0; told.status === 502 && i < 300; i++) {
    await new Promise((r) => setTimeout(r, 100))
    told = await fetch(base + '/hello')
  }
  assert.match((await told.text()).toLowerCase(), /x-forwarded-proto: https/)

  const reader = (await fetch(base + '/steps')).body.pipeThrough(new TextDecoderStream()).getReader()
  assert.equal((await reader.read()).value, 'one\n')
  await sandbox.commands.run('touch /tmp/go')
  assert.equal((await reader.read()).value, 'two\n')
  assert.equal((await reader.read()).done, true)

  const socket = new WebSocket(`wss://${sandbox.getHost(3001)}/socket`)
  const message = () => new Promise((resolve, reject) => {
    socket.onmessage = (e) => resolve(e.data)
    socket.onerror = (e) => reject(e.error ?? new Error('the WebSocket failed'))
  })
  await new Promise((resolve, reject) => { socket.onopen = resolve; socket.onerror = (e) => reject(e.error ?? new Error('the WebSocket failed')) })
  for (const text of ['abc', 'x'.repeat(70_000) + 'y']) {
    const answer = message()
    socket.send(text)
    assert.equal(await answer, [...text].reverse().join(''))
  }
  const closed = new Promise((resolve) => { socket.onclose = resolve })
  socket.close(4321, 'bye')
  const end = await closed
  assert.equal(end.code, 4321)
  assert.equal(end.reason, 'bye')
  assert.equal(end.wasClean, true)
  console.log(JSON.stringify({ host: sandbox.getHost(3001) }))
} finally {
  await sandbox.kill()
}
