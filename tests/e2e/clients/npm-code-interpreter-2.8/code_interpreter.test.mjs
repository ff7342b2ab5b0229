// Cells through npm @e2b/code-interpreter, run by tests/e2e/test_code_interpreter.py.
import assert from 'node:assert'
import { after, before, test } from 'node:test'
import { Sandbox } from '@e2b/code-interpreter'

const patient = { timeoutMs: 300_000, requestTimeoutMs: 300_000 }
let box

before(async () => {
  box = await Sandbox.create({ timeoutMs: 900_000, requestTimeoutMs: 300_000, envs: { A: 'of the create' } })
})
after(async () => {
  await box?.kill()
})

async function run(code, options = {}) {
  const execution = await box.runCode(code, { ...patient, ...options })
  assert.equal(execution.error, undefined, execution.error?.traceback)
  return execution
}
const stdout = (execution) => execution.logs.stdout.join('')

test('counts from one; variables of create and of one cell', async () => {
  const first = await run('1+1')
  assert.equal(first.text, '2')
  assert.equal(first.executionCount, 1)
  const second = await run("import os; [os.environ.get(k) for k in 'AB']", { envs: { B: 'now' } })
  assert.deepEqual(second.results[0].json, ['of the create', 'now'])
  assert.equal(second.executionCount, 2)
  assert.deepEqual((await run("[os.environ.get(k) for k in 'AB']")).results[0].json, ['of the create', null])
})

test('case 95: no character is lost where chunks are cut', async () => {
  const lines = []
  const execution = await run("for i in range(2000): print('ü漢🎉' * 20)", { onStdout: (m) => lines.push(m.line) })
  assert.equal(stdout(execution), ('ü漢🎉'.repeat(20) + '\n').repeat(2000))
  assert.equal(lines.join(''), stdout(execution))
})

test('errors', async () => {
  let told
  const execution = await box.runCode("x = 7\nraise RuntimeError('wrong: ü')", { ...patient, onError: (e) => { told = e } })
  assert.deepEqual([execution.error.name, execution.error.value], ['RuntimeError', 'wrong: ü'])
  assert.match(execution.error.traceback, /RuntimeError/)
  assert.equal(told.name, 'RuntimeError')
  assert.equal((await run('x')).text, '7')
})

test('case 92: a cell that is given up leaves the kernel free', async () => {
  await assert.rejects(box.runCode('y = 8\nwhile True: pass', { timeoutMs: 1500 }), { name: 'TimeoutError' })
  assert.equal((await run('y')).text, '8')
})

test('one result of each kind, in order', async () => {
  const { results } = await run(`
from IPython.display import HTML, Markdown, SVG, Latex, JSON, Javascript, display
from PIL import Image
import pandas as pd
display(HTML("<i>h</i>"), Markdown("*m*"), SVG("<svg xmlns='http://www.w3.org/2000/svg'/>"), Latex("$l$"), JSON({"j": 1}), Javascript("1"))
display({"application/pdf": "JVBERi0=", "image/jpeg": "/9j/"}, raw=True)
display(Image.new("RGB", (1, 1)))
display(pd.DataFrame({"a": [1, 2]}))
'end'`)
  assert.deepEqual(results.slice(0, 4).map((r) => [r.html, r.markdown, r.svg?.slice(0, 4), r.latex]),
    [['<i>h</i>', undefined, undefined, undefined], [undefined, '*m*', undefined, undefined], [undefined, undefined, '<svg', undefined], [undefined, undefined, undefined, '$l$']])
  assert.deepEqual(results[4].json, { j: 1 })
  assert.equal(results[5].javascript, '1')
  assert.deepEqual([results[6].pdf, results[6].jpeg], ['JVBERi0=', '/9j/'])
  assert.equal(Buffer.from(results[7].png, 'base64').readUInt32BE(16), 1)
  assert.deepEqual(results[8].data, { a: [1, 2] })
  assert.deepEqual([results[9].text, results[9].isMainResult, results[0].isMainResult], ['end', true, false])
})

// [how it is drawn, what its chart is]; each through plt.show().
const charts = [
  ["ax.plot([1, 2], [3, 4], label='l'); ax.set_xlabel('x (kg)')", (c) => {
    assert.equal(c.type, 'line')
    assert.deepEqual(c.elements, [{ label: 'l', points: [[1, 3], [2, 4]] }])
    assert.deepEqual([c.x_label, c.x_unit, c.x_scale], ['x (kg)', 'kg', 'linear'])
    assert.equal(c.x_ticks.length, c.x_tick_labels.length)
  }],
  ["ax.scatter([1, 2], [3, 5], label='s'); ax.set_yscale('log')", (c) => {
    assert.deepEqual([c.type, c.y_scale], ['scatter', 'log'])
    assert.deepEqual(c.elements, [{ label: 's', points: [[1, 3], [2, 5]] }])
  }],
  ["ax.bar(['a', 'b'], [3, 4], label='g')", (c) => {
    assert.equal(c.type, 'bar')
    assert.deepEqual(c.elements.map((e) => [e.label, e.group, Number(e.value)]), [['a', 'g', 3], ['b', 'g', 4]])
  }],
  ["ax.pie([1, 3], labels=['a', 'b'])", (c) => {
    assert.equal(c.type, 'pie')
    assert.deepEqual(c.elements.map((e) => [e.label, Math.round(e.angle), e.radius]), [['a', 90, 1], ['b', 270, 1]])
  }],
  ["ax.boxplot([[1, 2, 3, 4, 5, 30]])", (c) => {
    assert.equal(c.type, 'box_and_whisker')
    const [e] = c.elements
    assert.deepEqual([e.min, e.first_quartile, e.median, e.third_quartile, e.max, e.outliers], [1, 2.25, 3.5, 4.75, 5, [30]])
  }],
]

for (const [draw, check] of charts)
  test('a chart: ' + draw, async () => {
    const { results } = await run(`import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\n${draw}\nax.set_title('T')\nplt.show()\nplt.close('all')`)
    const [result] = results.filter((r) => r.chart)
    assert.equal(result.chart.title, 'T')
    check(result.chart)
    assert.match(result.png, /^iVBOR/)
  })

test('two axes are a superchart', async () => {
  const { results } = await run(`fig, (a, b) = plt.subplots(2)\na.plot([1, 2], [3, 4])\nb.bar(['x'], [1])\nplt.show()\nplt.close('all')`)
  const { chart } = results.find((r) => r.chart)
  assert.equal(chart.type, 'superchart')
  assert.deepEqual(chart.elements.map((c) => c.type), ['line', 'bar'])
})

test('contexts', async () => {
  const context = await box.createCodeContext({ cwd: '/tmp', language: 'python', requestTimeoutMs: 300_000 })
  assert.equal((await run('import os; z = 1; os.getcwd()', { context })).text, '/tmp')
  await box.restartCodeContext(context)
  assert.equal((await box.runCode('z', { ...patient, context })).error.name, 'NameError')
  assert.ok((await box.listCodeContexts()).some((c) => c.id === context.id && c.cwd === '/tmp'))
  await box.removeCodeContext(context)
  await assert.rejects(box.runCode('1', { ...patient, context }), { name: 'NotFoundError' })
})

test('other languages', async () => {
  assert.equal(stdout(await run('echo bash', { language: 'bash' })), 'bash\n')
  assert.equal((await run('const q: number = 6 * 7; q', { language: 'ts' })).text, '42')
  assert.equal((await run('q + 1', { language: 'js' })).text, '43')
  assert.match(stdout(await run('print(1:3)', { language: 'r' })), /1 2 3/)
  await assert.rejects(box.runCode('1', { ...patient, language: 'java' }))
})
