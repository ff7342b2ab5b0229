/* The Jupyter protocol (version 5.3) from the kernel's side: its five sockets, and messages with their signatures. */
import { createHmac, randomUUID, timingSafeEqual } from "node:crypto";
import { readFileSync } from "node:fs";
import { listen } from "./zmtp.mjs";

const DELIMITER = Buffer.from("<IDS|MSG>");
const EMPTY = "{}";

export class Connection {
	#file;
	#session = randomUUID();
	#iopub;
	#publishing = Promise.resolve();

	/* file: the path of the connection file. */
	constructor(file) {
		this.#file = JSON.parse(readFileSync(file, "utf8"));
	}

	/* Listens on everything. handle(channel, message) is awaited for each request, one after another on each channel; message.header is the parent of what follows from it. */
	async open(handle) {
		this.#iopub = await listen("PUB", this.#place("iopub"));
		for (const channel of ["shell", "control"]) {
			let handling = Promise.resolve();
			await listen("ROUTER", this.#place(channel), (frames, peer) => {
				const message = this.#parse(frames);
				if (message) handling = handling.then(() => handle(channel, { ...message, peer }));
			});
		}
		await listen("ROUTER", this.#place("stdin"), () => {});
		await listen("REP", this.#place("hb"), (frames, peer) => peer.send(frames));
	}

	/* Sends an answer to a request. */
	reply(request, type, content) {
		return request.peer.send([...request.identities, ...this.#frames(type, content, request.header)]);
	}

	/* Tells everybody, one after another; resolves when there is room for more. parent: the header of the request it belongs to, or undefined. */
	publish(type, content, parent) {
		this.#publishing = this.#publishing.then(() => this.#iopub.publish([type, ...this.#frames(type, content, parent)]));
		return this.#publishing;
	}

	#place(name) {
		const { transport, ip } = this.#file;
		const port = this.#file[`${name}_port`];
		return transport === "ipc" ? { path: `${ip}-${port}` } : { host: ip, port };
	}

	#sign(parts) {
		if (!this.#file.key) return "";
		const hmac = createHmac(this.#file.signature_scheme.replace(/^hmac-/, ""), this.#file.key);
		for (const part of parts) hmac.update(part);
		return hmac.digest("hex");
	}

	#frames(type, content, parent) {
		const header = { msg_id: randomUUID(), msg_type: type, session: this.#session, username: "kernel", date: new Date().toISOString(), version: "5.3" };
		const parts = [JSON.stringify(header), JSON.stringify(parent ?? {}), EMPTY, JSON.stringify(content)];
		return [DELIMITER, this.#sign(parts), ...parts];
	}

	/* Undefined when it is not ours. */
	#parse(frames) {
		const at = frames.findIndex((f) => f.equals(DELIMITER));
		const [signature, ...parts] = frames.slice(at + 1);
		if (at < 0 || parts.length < 4) return undefined;
		const wanted = Buffer.from(this.#sign(parts.slice(0, 4)));
		if (wanted.length !== signature.length || !timingSafeEqual(wanted, signature)) return undefined;
		try {
			const [header, , , content] = parts.slice(0, 4).map((p) => JSON.parse(p));
			return { identities: frames.slice(0, at), header, type: header.msg_type, content };
		} catch {
			return undefined;
		}
	}
}

/*
 * What every kernel answers alike. kernel: {info, execute(request, count) -> reply content, interrupt(), complete(code), shutdown()}; execute gets
 * {code, silent} and publishes by itself; info is the content of kernel_info_reply without what is the same everywhere.
 */
export async function serve(connection, kernel) {
	let count = 0;
	const handlers = {
		async kernel_info_request() {
			return { status: "ok", protocol_version: "5.3", implementation_version: "1", help_links: [], ...kernel.info };
		},
		async execute_request(m) {
			const { code = "", silent = false, store_history = !silent } = m.content;
			if (store_history && !silent) count++;
			if (!silent) await connection.publish("execute_input", { code, execution_count: count }, m.header);
			const content = await kernel.execute({ code, silent, count, parent: m.header });
			return { execution_count: count, payload: [], user_expressions: {}, ...content };
		},
		async is_complete_request(m) {
			return kernel.isComplete(m.content.code ?? "");
		},
		async complete_request(m) {
			const { cursor_pos = 0 } = m.content;
			return { status: "ok", matches: [], cursor_start: cursor_pos, cursor_end: cursor_pos, metadata: {} };
		},
		async inspect_request() {
			return { status: "ok", found: false, data: {}, metadata: {} };
		},
		async history_request() {
			return { status: "ok", history: [] };
		},
		async comm_info_request() {
			return { status: "ok", comms: {} };
		},
		async interrupt_request() {
			await kernel.interrupt();
			return { status: "ok" };
		},
		async shutdown_request(m) {
			return { status: "ok", restart: m.content.restart ?? false };
		},
	};
	await connection.open(async (channel, m) => {
		const handler = handlers[m.type];
		if (!handler) return;
		await connection.publish("status", { execution_state: "busy" }, m.header);
		try {
			await connection.reply(m, m.type.replace(/request$/, "reply"), await handler(m));
		} finally {
			await connection.publish("status", { execution_state: "idle" }, m.header);
		}
		if (m.type === "shutdown_request") kernel.shutdown();
	});
	await connection.publish("status", { execution_state: "starting" }, undefined);
}
