/* The bash kernel: one interactive shell that lives from cell to cell: node bash.mjs CONNECTION-FILE. */
import { execFileSync, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { constants, mkdtempSync, openSync, rmSync } from "node:fs";
import { Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Connection, serve } from "./connection.mjs";

/* Where the shell's own output goes, whatever a cell does with 1 and 2. */
const OUT = 60;
const ERR = 61;

const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/* One of the shell's outputs: a pipe with a name, since what Node makes itself are sockets, which `> /dev/stderr` cannot open. */
class Output {
	#socket;
	#kept = ""; /* what may be the beginning of a mark */
	#mark;
	#onText;
	#marked;

	constructor(path, mark, onText) {
		this.#mark = mark;
		this.#onText = onText;
		execFileSync("mkfifo", ["-m", "600", path]);
		/* Open for writing too: it does not end while no shell is there. */
		this.#socket = new Socket({ fd: openSync(path, constants.O_RDWR | constants.O_NONBLOCK), readable: true, writable: false });
		this.#socket.setEncoding("utf8");
		this.#socket.on("data", (text) => this.#take(text));
	}

	/* Resolves to what stands behind the next mark. */
	marked() {
		return new Promise((resolve) => (this.#marked = resolve));
	}

	/* Reads no more until that resolves. */
	async #told(text) {
		if (!text) return;
		this.#socket.pause();
		await this.#onText(text);
		this.#socket.resume();
	}

	async #take(text) {
		const all = this.#kept + text;
		const at = all.indexOf(this.#mark);
		const end = at < 0 ? -1 : all.indexOf("\0", at + this.#mark.length);
		if (end >= 0) {
			this.#kept = "";
			await this.#told(all.slice(0, at));
			this.#marked?.(all.slice(at + this.#mark.length, end));
			if (end + 1 < all.length) await this.#take(all.slice(end + 1));
			return;
		}
		let keep = at < 0 ? 0 : all.length - at;
		if (at < 0) for (let n = Math.min(this.#mark.length - 1, all.length); n > 0 && !keep; n--) if (this.#mark.startsWith(all.slice(-n))) keep = n;
		this.#kept = all.slice(all.length - keep);
		await this.#told(all.slice(0, all.length - keep));
	}
}

class Kernel {
	info = {
		implementation: "cubicle-bash",
		banner: "bash",
		language_info: { name: "bash", version: "5", mimetype: "text/x-sh", file_extension: ".sh", codemirror_mode: "shell" },
	};
	#connection;
	#mark = `\0#${randomBytes(16).toString("hex")} `;
	#say; /* the command that prints both marks, the first with the status */
	#shell;
	#ended; /* resolves to [status, signal] when the shell has ended */
	#parent;
	#silent = false;
	#out;
	#err;

	constructor(connection) {
		this.#connection = connection;
		const print = (what, to) => `printf '\\0${this.#mark.slice(1)}%d\\0' ${what} >&${to}`;
		/* Plain commands: after a cell that ends within quotes bash takes no reserved word. */
		this.#say = `${print("$?", OUT)}; ${print("0", ERR)}`;
		const directory = mkdtempSync(join(tmpdir(), ".bash-"));
		const paths = ["out", "err"].map((name) => join(directory, name));
		[this.#out, this.#err] = paths.map((path, i) => new Output(path, this.#mark, (text) => this.#publish(i ? "stderr" : "stdout", text)));
		/* Kept open, since a new shell gets them too; the names are not needed any more. */
		this.descriptors = paths.map((path) => openSync(path, constants.O_WRONLY));
		rmSync(directory, { recursive: true });
		this.#start();
	}

	async execute({ code, silent, parent }) {
		this.#parent = parent;
		this.#silent = silent;
		const marks = Promise.all([this.#out.marked(), this.#err.marked()]);
		/* An interrupt makes the shell go on with its next line, so the marks come in every case but its end. */
		this.#shell.stdin.write(`eval ${quote(code)} </dev/null\n${this.#say}\n`);
		const ended = this.#ended.then(([status, signal]) => ({ status, signal }));
		const result = await Promise.race([marks.then(([status]) => ({ status: Number(status) })), ended]);
		if ("signal" in result) await this.#startAgain();
		return this.#answer(result, silent);
	}

	/* SIGINT goes to our whole process group: what the shell waits for ends, and the shell gives the cell up. */
	async interrupt() {
		process.kill(0, "SIGINT");
	}

	isComplete() {
		return { status: "unknown" };
	}

	shutdown() {
		process.kill(0, "SIGKILL");
	}

	#start() {
		const [out, err] = this.descriptors;
		const shell = spawn("/bin/bash", ["--norc", "--noprofile", "--noediting", "-i"], {
			/* What it says about the missing terminal, and its first prompt, are no matter of a cell. */
			stdio: ["pipe", out, "ignore", ...Array(OUT - 3).fill("ignore"), out, err],
		});
		shell.stdin.write(`set +H; unset HISTFILE; PS1= PS2=; exec 2>&${ERR}; ${this.#say}\n`);
		shell.stdin.on("error", () => {});
		this.#shell = shell;
		this.#ended = new Promise((resolve) => shell.on("exit", (status, signal) => resolve([status, signal])));
		this.ready = Promise.all([this.#out.marked(), this.#err.marked()]);
	}

	/* The cell ended the shell: what it has printed comes before the first mark of the new one. */
	async #startAgain() {
		this.#start();
		await this.ready;
	}

	async #answer({ status, signal }, silent) {
		if (status === 0) return { status: "ok" };
		const evalue = signal ? `the shell was ended by ${signal}` : `exit status ${status}`;
		const error = { ename: status === 130 ? "KeyboardInterrupt" : "ExitStatus", evalue, traceback: [evalue] };
		if (!silent) await this.#connection.publish("error", error, this.#parent);
		return { ...error, status: "error" };
	}

	#publish(name, text) {
		return this.#silent ? Promise.resolve() : this.#connection.publish("stream", { name, text }, this.#parent);
	}
}

process.on("SIGINT", () => {});
const connection = new Connection(process.argv[2]);
const kernel = new Kernel(connection);
await kernel.ready;
await serve(connection, kernel);
