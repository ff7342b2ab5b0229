/*
 * The main thread: user code, and what it finds there. The protocol is spoken by another thread (javascript.mjs), so that a cell that never returns can be
 * interrupted. Cells are evaluated by V8's inspector, whose REPL mode knows await outside of functions and variables that are declared again.
 */
import { Session } from "node:inspector";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { inspect } from "node:util";
import vm from "node:vm";

/* Bytes of output that may wait for the other thread, and what a message counts for by itself. */
const WAITING = 1 << 20;
const MESSAGE = 512;
const MAX_JSON = 1 << 20;
const MIME = {
	html: "text/html", markdown: "text/markdown", latex: "text/latex", text: "text/plain", svg: "image/svg+xml", png: "image/png", jpeg: "image/jpeg",
	pdf: "application/pdf", json: "application/json", javascript: "application/javascript",
};

/* What a cell that ended itself is told apart by. */
class Exit extends Error {
	constructor(code) {
		super(`process.exit(${code})`);
		this.name = "Exit";
		this.code = code;
	}
}

const isBytes = (value) => value instanceof Uint8Array;
const base64 = (value) => (isBytes(value) ? Buffer.from(value).toString("base64") : value);

function imageType(bytes) {
	const begin = Buffer.from(bytes.subarray(0, 4)).toString("latin1");
	return begin === "\x89PNG" ? "image/png" : begin.startsWith("\xff\xd8\xff") ? "image/jpeg" : undefined;
}

/* Plain data only: what JSON would drop or change stays text. */
function plainJson(value) {
	const prototype = value && typeof value === "object" ? Object.getPrototypeOf(value) : undefined;
	if (!Array.isArray(value) && prototype !== Object.prototype && prototype !== null) return undefined;
	try {
		const text = JSON.stringify(value);
		return text.length <= MAX_JSON ? JSON.parse(text) : undefined;
	} catch {
		return undefined;
	}
}

/* The representations that a value has of its own: Symbol.for("Jupyter.display") as in Deno, _toMime and _toHtml ... as in IJavascript. */
async function ownBundle(value) {
	if (value === null || (typeof value !== "object" && typeof value !== "function")) return undefined;
	const show = value[Symbol.for("Jupyter.display")] ?? value._toMime;
	if (typeof show === "function") return { ...(await show.call(value)) };
	const data = {};
	for (const [name, type] of Object.entries(MIME)) {
		const method = value[`_to${name[0].toUpperCase()}${name.slice(1)}`];
		if (typeof method === "function") data[type] = base64(await method.call(value));
	}
	return Object.keys(data).length ? data : undefined;
}

async function bundle(value) {
	const own = await ownBundle(value);
	if (own) return { "text/plain": inspect(value), ...own };
	const data = { "text/plain": inspect(value) };
	const type = isBytes(value) && imageType(value);
	if (type) data[type] = base64(value);
	const json = plainJson(value);
	if (json !== undefined) data["application/json"] = json;
	return data;
}

/* Without the frames that are ours. */
const ownFrames = /^ +at (Session\.post \(node:inspector|MessagePort\.|exports\.emitMessage|\[nodejs\.internal|.*\/(runtime|javascript)\.mjs:\d|new Promise \(<anonymous>\)$)/;
const traceback = (error) => inspect(error).split("\n").filter((line) => !ownFrames.test(line));

function describe(error) {
	if (!(error instanceof Error)) return { ename: "Uncaught", evalue: inspect(error), traceback: [`Uncaught ${inspect(error)}`] };
	return { ename: String(error.name), evalue: String(error.message), traceback: traceback(error) };
}

const failure = (error) => (error instanceof Exit && error.code == 0 ? {} : { error: describe(error) });

/* Prepares the thread. port: messages to the other one; waiting: Int32Array in shared memory, the bytes of output on their way. */
export function prepare(port, waiting) {
	const post = (message, bytes) => {
		Atomics.add(waiting, 0, bytes + MESSAGE);
		port.postMessage({ ...message, bytes: bytes + MESSAGE });
		/* A cell that prints without end waits for its reader; what the other thread takes off wakes it. */
		for (let n; (n = Atomics.load(waiting, 0)) > WAITING; ) Atomics.wait(waiting, 0, n, 1000);
	};
	for (const name of ["stdout", "stderr"]) {
		process[name].write = (chunk, encoding, done) => {
			const text = typeof chunk === "string" ? chunk : Buffer.from(chunk).toString(typeof encoding === "string" ? encoding : "utf8");
			if (text) post({ stream: name, text }, text.length);
			const callback = typeof encoding === "function" ? encoding : done;
			if (callback) process.nextTick(callback);
			return true;
		};
	}

	const show = (data) => post({ display: data }, JSON.stringify(data).length);
	const display = async (value) => show(await bundle(value));
	for (const [name, type] of Object.entries(MIME)) display[name] = (value) => show({ [type]: name === "json" ? value : String(base64(value)) });
	display.mime = (data) => show(data);

	const waitedFor = new Set();
	const here = `${process.cwd()}/`;
	const require = createRequire(here);
	const load = new vm.Script("(name, options) => import(name, options)", { importModuleDynamically: vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER }).runInThisContext();
	const us = {
		/* Finds also what require() finds: modules installed for everybody. */
		async import(name, options) {
			try {
				return await load(name, options);
			} catch (error) {
				if (error?.code !== "ERR_MODULE_NOT_FOUND" || /^[./]|^\w+:/.test(name)) throw error;
				let path;
				try {
					path = require.resolve(name);
				} catch {
					throw error;
				}
				return load(pathToFileURL(path).href, options);
			}
		},
		/* The named exports; of CommonJS modules also those that only its exports object has. */
		pick(module, names, from) {
			const picked = {};
			for (const name of names) {
				const holder = name in module ? module : module.default;
				if (holder === null || holder === undefined || !(name in Object(holder)))
					throw new SyntaxError(`The requested module '${from}' does not provide an export named '${name}'`);
				picked[name] = holder[name];
			}
			return picked;
		},
		meta: { url: pathToFileURL(`${here}cell.mjs`).href, dirname: process.cwd(), filename: `${here}cell.mjs`, resolve: (name) => pathToFileURL(require.resolve(name)).href },
		held: undefined, /* [value] on its way from the inspector */
		special: (text) => (text.endsWith("n") ? BigInt(text.slice(0, -1)) : Number(text)),
		/*
		 * What a cell waits for. Nothing else may refer to a promise that nobody will resolve; it would be collected, the inspector would tell so in the middle of
		 * that, and the process would end.
		 */
		hold(value) {
			const held = Promise.resolve(value).finally(() => waitedFor.delete(held));
			waitedFor.add(held);
			return held;
		},
		each(items) {
			const iterator = items[Symbol.asyncIterator]?.() ?? items[Symbol.iterator]();
			const step = async (result) => (items[Symbol.asyncIterator] ? result : { done: (await result).done, value: await (await result).value });
			return {
				[Symbol.asyncIterator]: () => ({
					next: () => us.hold(step(iterator.next())),
					return: (value) => us.hold(iterator.return ? step(iterator.return(value)) : { done: true, value }),
				}),
			};
		},
	};
	Object.defineProperty(globalThis, Symbol.for("cubicle"), { value: us });
	const module = { exports: {} };
	for (const [name, value] of Object.entries({ require, module, exports: module.exports, __dirname: process.cwd(), __filename: `${here}cell.js`, display, $$: display }))
		Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });

	process.exit = (code = process.exitCode ?? 0) => {
		throw new Exit(code);
	};
	/* What nobody waits for must not end the kernel. */
	process.on("uncaughtException", (error) => {
		if (!(error instanceof Exit)) process.stderr.write(`${traceback(error).join("\n")}\n`);
	});
	let current; /* the inspector session of the cell that runs */
	const command = (method, params) => new Promise((resolve) => current.post(method, params, (error, r) => resolve(error ? { exceptionDetails: { text: error.message } } : r)));
	/* The value behind an object that the inspector tells of. */
	const valueOf = async (object) => {
		if (!object.objectId) return object.unserializableValue ? us.special(object.unserializableValue) : object.value;
		const whole = await command("Runtime.evaluate", { expression: 'globalThis[Symbol.for("cubicle")]' });
		await command("Runtime.callFunctionOn", { functionDeclaration: "function(value) { this.held = [value]; }", objectId: whole.result.objectId, arguments: [{ objectId: object.objectId }] });
		return us.held;
	};
	/* What became of a cell: {}, {data} or {error}. */
	const evaluate = async (expression) => {
		current?.disconnect();
		current = new Session();
		current.connect();
		try {
			const r = await command("Runtime.evaluate", { expression, replMode: true, awaitPromise: true });
			if (r.exceptionDetails) {
				const thrown = await valueOf(r.exceptionDetails.exception ?? { value: r.exceptionDetails.text });
				return failure(r.exceptionDetails.exception?.objectId ? thrown[0] : thrown);
			}
			const value = await valueOf(r.result);
			/* main() without await as the last line: what it prints belongs to this cell. */
			const shown = r.result.objectId ? await value[0] : value;
			return shown === undefined ? {} : { data: await bundle(shown) };
		} catch (error) {
			return failure(error);
		} finally {
			us.held = undefined;
		}
	};
	port.on("message", async (m) => {
		if (m === "ping") port.postMessage("pong");
		else if (m === "leave") current?.disconnect();
		else port.postMessage({ number: m.number, result: await evaluate(m.expression) });
	});
}
