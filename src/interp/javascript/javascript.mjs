/* The JavaScript kernel, which takes TypeScript as well: node javascript.mjs CONNECTION-FILE. */
import { Session } from "node:inspector";
import { isMainThread, MessageChannel, Worker, workerData } from "node:worker_threads";

/* How long an interrupted cell may take to answer before it is stopped, and then before it is stopped again. */
const PATIENCE_MS = 50;
const AGAIN_MS = 1000;

async function mainThread() {
	const { prepare } = await import("./runtime.mjs");
	const { port1, port2 } = new MessageChannel();
	const waiting = new Int32Array(new SharedArrayBuffer(4));
	const worker = new Worker(new URL(import.meta.url), { workerData: { file: process.argv[2], port: port2, waiting }, transferList: [port2], stdout: false, stderr: false });
	const fatal = (error) => {
		process.stderr.constructor.prototype.write.call(process.stderr, `${error?.stack ?? error}\n`);
		process.kill(process.pid, "SIGKILL");
	};
	worker.on("error", fatal);
	worker.on("exit", () => process.kill(process.pid, "SIGKILL"));
	prepare(port1, waiting);
}

/*
 * Evaluates cells in the main thread. That is asked to do so by messages and answers by messages; what is stopped while it computes never answers, so every wait
 * for a cell can be given up.
 */
class Kernel {
	info = {
		implementation: "cubicle-javascript",
		banner: `Node.js ${process.version}`,
		language_info: { name: "javascript", version: process.versions.node, mimetype: "application/javascript", file_extension: ".js", nbconvert_exporter: "script" },
	};
	#session = new Session(); /* a second way in, for what must not wait for the main thread */
	#number = 0;
	#running; /* {number, resolve(result)}: what the main thread was asked to evaluate last */
	#connection;
	#port;
	#waiting;
	#parent;
	#cell; /* while one runs: {stop(): it counts as interrupted; stopped: that was asked for} */
	#pong;
	#texts = []; /* output that is not published yet */
	#publishing = Promise.resolve();
	#transform;

	constructor(connection, port, waiting, transform) {
		this.#connection = connection;
		this.#port = port;
		this.#waiting = waiting;
		this.#transform = transform;
		this.#session.connectToMainThread();
		port.on("message", (m) => this.#take(m));
	}

	async execute({ code, silent, count, parent }) {
		this.#parent = parent;
		let result;
		const interrupted = new Promise((resolve) => {
			const cell = (this.#cell = { stopped: false });
			cell.stop = () => resolve({ error: { ename: "KeyboardInterrupt", evalue: "the cell was interrupted", traceback: ["KeyboardInterrupt: the cell was interrupted"] } });
		});
		try {
			const cell = this.#cell;
			result = await Promise.race([interrupted, this.#run(code, silent, count)]);
			if (cell.stopped && result.error) result = await interrupted; /* what V8 says of it is no matter of the user's */
		} finally {
			this.#cell = undefined;
			this.#running = undefined;
			await this.#flush();
		}
		if (result.error) {
			if (!silent) await this.#connection.publish("error", result.error, parent);
			return { status: "error", ...result.error };
		}
		if (result.data && !silent) await this.#connection.publish("execute_result", { data: result.data, metadata: {}, execution_count: count }, parent);
		return { status: "ok" };
	}

	/* A cell that only waits is left to itself; one that computes is stopped. */
	async interrupt() {
		const cell = this.#cell;
		if (!cell) return;
		cell.stopped = true;
		for (let patience = PATIENCE_MS; ; patience = AGAIN_MS) {
			const answered = new Promise((resolve) => (this.#pong = () => resolve(true)));
			this.#port.postMessage("ping");
			if (await Promise.race([answered, new Promise((resolve) => setTimeout(resolve, patience, false))])) {
				this.#port.postMessage("leave");
				cell.stop();
				return;
			}
			await new Promise((resolve) => this.#session.post("Runtime.terminateExecution", resolve));
		}
	}

	isComplete(code) {
		return this.#transform.completeness(code);
	}

	shutdown() {
		process.kill(process.pid, "SIGKILL");
	}

	#run(code, silent, count) {
		let expression;
		try {
			expression = this.#transform.transform(code);
		} catch {
			expression = code; /* V8 says best what is wrong with it */
		}
		return new Promise((resolve) => {
			this.#running = { number: ++this.#number, resolve };
			this.#port.postMessage({ number: this.#number, expression: silent ? expression : `${expression}\n//# sourceURL=cell-${count}.js` });
		});
	}

	#take(message) {
		if (message === "pong") {
			this.#pong?.();
			return;
		}
		if (message.number) {
			if (this.#running?.number === message.number) this.#running.resolve(message.result);
			return;
		}
		const last = this.#texts.at(-1);
		if (last && message.stream && last.stream === message.stream && last.text.length < 65536) {
			last.text += message.text;
			last.bytes += message.bytes;
		} else {
			this.#texts.push({ ...message, parent: this.#parent });
		}
		this.#publishing = this.#publishing.then(() => this.#publish());
	}

	async #publish() {
		for (let m; (m = this.#texts.shift()); ) {
			if (m.stream) await this.#connection.publish("stream", { name: m.stream, text: m.text }, m.parent);
			else await this.#connection.publish("display_data", { data: m.display, metadata: {}, transient: {} }, m.parent);
			Atomics.sub(this.#waiting, 0, m.bytes);
			Atomics.notify(this.#waiting, 0);
		}
	}

	/* Everything that the main thread has sent so far is published when this resolves. */
	async #flush() {
		const { receiveMessageOnPort } = await import("node:worker_threads");
		for (let m; (m = receiveMessageOnPort(this.#port)); ) this.#take(m.message);
		await this.#publishing;
	}
}

async function protocolThread() {
	const { file, port, waiting } = workerData;
	const { Connection, serve } = await import("./connection.mjs");
	const transform = await import("./transform.mjs");
	const connection = new Connection(file);
	await serve(connection, new Kernel(connection, port, waiting, transform));
}

await (isMainThread ? mainThread() : protocolThread());
