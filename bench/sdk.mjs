// Times Sandbox.create and runCode('1+1') of npm @e2b/code-interpreter: a line "CONCURRENCY ROUNDS" on the standard input, a JSON line on the standard output.
import { createRequire } from 'node:module'
import readline from 'node:readline'
import { pathToFileURL } from 'node:url'

// Installed where the working directory is.
const { Sandbox } = await import(pathToFileURL(createRequire(process.cwd() + '/').resolve('@e2b/code-interpreter')))

async function life(found) {
  let box
  try {
    const start = performance.now()
    box = await Sandbox.create()
    const { text } = await box.runCode('1+1')
    if (text !== '2') throw new Error(`result ${text}`)
    found.samples_ms.push(performance.now() - start)
  } catch (e) {
    found.failed++
    found.failure = String(e).slice(0, 200)
  }
  await box?.kill().catch((e) => { found.failure ??= String(e).slice(0, 200) })
}

for await (const line of readline.createInterface({ input: process.stdin })) {
  const [concurrency, rounds] = line.split(' ').map(Number)
  const found = { samples_ms: [], failed: 0 }
  await Promise.all(Array.from({ length: concurrency }, async () => {
    for (let i = 0; i < rounds; i++) await life(found)
  }))
  console.log(JSON.stringify(found))
}
process.exit(0)
