// The calls of calls.py for npm @e2b/code-interpreter, as driver.mjs drives npm e2b.
import assert from 'node:assert/strict'

export function calls(sdk) {
  const { Sandbox } = sdk
  let shared
  const on = (body) => async () => body((shared ??= await Sandbox.create({ timeoutMs: 900_000 })))

  return {
    'run code': on(async (box) => {
      const r = await box.runCode("print('out'); x = 20 + 1; x * 2")
      assert.deepEqual([r.text, r.logs.stdout, r.error, r.executionCount], ['42', ['out\n'], undefined, 1])
      assert.equal((await box.runCode('x')).text, '21')
    }),
    'run code with callbacks': on(async (box) => {
      const out = [], err = [], results = [], errors = []
      await box.runCode("import sys\nprint('ü日')\nprint('e', file=sys.stderr)\n1", {
        onStdout: (m) => out.push(m.line), onStderr: (m) => err.push(m.line), onResult: (r) => results.push(r.text), onError: (e) => errors.push(e),
      })
      assert.deepEqual([out.join(''), err.join(''), results, errors], ['ü日\n', 'e\n', ['1'], []])
    }),
    'run code that fails': on(async (box) => {
      const { error } = await box.runCode('def f():\n  return 1 / 0\nf()')
      assert.deepEqual([error.name, error.value], ['ZeroDivisionError', 'division by zero'])
      assert.match(error.traceback.replace(/\x1b\[[0-9;]*m/g, ''), /return 1 \/ 0/)
    }),
    'results of many kinds': on(async (box) => {
      const r = await box.runCode('from IPython.display import HTML, Markdown, SVG, JSON, Latex, Javascript, display\n' +
        `display(HTML('<b>h</b>')); display(Markdown('# m')); display(SVG('<svg xmlns="http://www.w3.org/2000/svg"/>'))\n` +
        "display(JSON({'a': 1})); display(Latex('$x$')); display(Javascript('1'))")
      assert.deepEqual(r.results.map((x) => x.formats().find((k) => k !== 'text')), ['html', 'markdown', 'svg', 'json', 'latex', 'javascript'])
    }),
    'a chart': on(async (box) => {
      const r = await box.runCode("import matplotlib.pyplot as plt\nplt.plot([1, 2, 3], [4, 5, 6], label='l')\nplt.title('t')\nplt.xlabel('x')\nplt.show()")
      assert.match(r.results[0].png, /^iVBOR/)
      assert.equal(r.results[0].chart.title, 't')
      assert.deepEqual(r.results[0].chart.elements[0].points, [[1, 4], [2, 5], [3, 6]])
    }),
    'a data frame': on(async (box) => {
      const r = await box.runCode("import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': ['x', 'y']})")
      assert.deepEqual(r.results[0].data, { a: [1, 2], b: ['x', 'y'] })
      assert.match(r.results[0].html, /<table/)
    }),
    'environment of one run': on(async (box) => {
      assert.equal((await box.runCode("import os; os.environ['Q']", { envs: { Q: '1' } })).text, '1')
      assert.equal((await box.runCode("os.environ.get('Q', 'none')")).text, 'none')
    }),
    contexts: on(async (box) => {
      const context = await box.createCodeContext({ cwd: '/tmp', language: 'python' })
      assert.deepEqual([context.language, context.cwd], ['python', '/tmp'])
      await box.runCode('y = 5', { context })
      assert.equal((await box.runCode('import os; os.getcwd(), y', { context })).text, "('/tmp', 5)")
      assert.equal((await box.runCode('y')).error.name, 'NameError')
      assert.ok((await box.listCodeContexts()).some((c) => c.id === context.id))
      await box.restartCodeContext(context)
      assert.equal((await box.runCode('y', { context })).error.name, 'NameError')
      await box.removeCodeContext(context)
      assert.ok(!(await box.listCodeContexts()).some((c) => c.id === context.id))
    }),
    'javascript and bash': on(async (box) => {
      const r = await box.runCode("console.log('js'); [1, 2].length", { language: 'js' })
      assert.deepEqual([r.logs.stdout.join(''), r.text], ['js\n', '2'])
      assert.equal((await box.runCode('echo $((40+2))', { language: 'bash' })).logs.stdout.join(''), '42\n')
    }),
    'code that takes too long': on(async (box) => {
      await assert.rejects(box.runCode('import time; time.sleep(300)', { timeoutMs: 2000 }), (e) => e instanceof sdk.TimeoutError || /timed out/i.test(e.message))
      assert.equal((await box.runCode("'goes on'")).text, 'goes on')
    }),
    'no such context': on(async (box) => {
      await assert.rejects(box.runCode('1', { context: { id: 'no-such-context' } }), sdk.NotFoundError)
    }),

    'the end': async () => {
      if (shared) await shared.kill()
    },
  }
}
