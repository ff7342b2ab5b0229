/* The side of ZeroMQ that a kernel needs: listening sockets that speak ZMTP 3.0 with the NULL mechanism (rfc.zeromq.org/spec/23). */
import { createServer } from "node:net";

const MORE = 1;
const LONG = 2;
const COMMAND = 4;
const MAX_MESSAGE = 256 << 20;

const GREETING = Buffer.alloc(64);
GREETING[0] = 0xff;
GREETING[9] = 0x7f;
GREETING[10] = 3;
GREETING.write("NULL", 12);

function frame(body, flags) {
	const bytes = Buffer.from(body);
	const head = Buffer.alloc(bytes.length > 255 ? 9 : 2);
	head[0] = flags | (bytes.length > 255 ? LONG : 0);
	if (bytes.length > 255) head.writeBigUInt64BE(BigInt(bytes.length), 1);
	else head[1] = bytes.length;
	return [head, bytes];
}

function ready(type) {
	const name = "Socket-Type";
	const value = Buffer.alloc(4);
	value.writeUInt32BE(type.length);
	return frame(Buffer.concat([Buffer.from("\x05READY"), Buffer.from([name.length]), Buffer.from(name), value, Buffer.from(type)]), COMMAND);
}

/* One connected peer: messages in as arrays of frames, messages out. */
class Peer {
	subscriptions = [];
	#socket;
	#chunks = [];
	#length = 0;
	#greeted = false;
	#frames = [];
	#size = 0;
	#onMessage;

	constructor(socket, type, onMessage) {
		this.#socket = socket;
		this.#onMessage = onMessage;
		socket.on("error", () => {});
		socket.on("data", (chunk) => this.#take(chunk));
		socket.write(Buffer.concat([GREETING, ...ready(type)]));
	}

	/* Resolves when there is room for more, or nobody to send to. */
	send(frames) {
		const socket = this.#socket;
		if (socket.destroyed) return Promise.resolve();
		socket.cork();
		let room = true;
		frames.forEach((f, i) => frame(f, i < frames.length - 1 ? MORE : 0).forEach((part) => (room = socket.write(part))));
		socket.uncork();
		if (room || !socket.writableNeedDrain) return Promise.resolve();
		return new Promise((resolve) => {
			const done = () => {
				socket.off("drain", done).off("close", done);
				resolve();
			};
			socket.on("drain", done).on("close", done);
		});
	}

	#take(chunk) {
		this.#chunks.push(chunk);
		this.#length += chunk.length;
		if (!this.#greeted) {
			if (this.#length < GREETING.length) return;
			const greeting = this.#read(GREETING.length);
			if (greeting[0] !== 0xff || greeting[10] < 3 || greeting.toString("latin1", 12, 17) !== "NULL\0") return void this.#socket.destroy();
			this.#greeted = true;
		}
		while (this.#frame());
	}

	/* n bytes off what was received. */
	#read(n) {
		if (this.#chunks.length > 1) this.#chunks = [Buffer.concat(this.#chunks)];
		const bytes = this.#chunks[0].subarray(0, n);
		this.#chunks[0] = this.#chunks[0].subarray(n);
		this.#length -= n;
		return bytes;
	}

	/* Takes one whole frame, if there is one. */
	#frame() {
		if (this.#length < 2) return false;
		if (this.#chunks[0].length < 9 && this.#chunks.length > 1) this.#chunks = [Buffer.concat(this.#chunks)];
		const head = this.#chunks[0];
		const headLength = head[0] & LONG ? 9 : 2;
		if (this.#length < headLength) return false;
		const size = head[0] & LONG ? Number(head.readBigUInt64BE(1)) : head[1];
		if (this.#size + size > MAX_MESSAGE) return void this.#socket.destroy();
		if (this.#length < headLength + size) return false;
		const flags = head[0];
		this.#read(headLength);
		const body = this.#read(size);
		if (flags & COMMAND) this.#command(body);
		else this.#message(body, flags);
		return true;
	}

	#command(body) {
		const name = body.toString("latin1", 1, 1 + body[0]);
		if (name === "SUBSCRIBE") this.subscriptions.push(body.subarray(1 + body[0]));
		else if (name === "PING") this.#socket.write(Buffer.concat(frame(Buffer.concat([Buffer.from("\x04PONG"), body.subarray(7)]), COMMAND)));
	}

	#message(body, flags) {
		this.#frames.push(body);
		this.#size += body.length;
		if (flags & MORE) return;
		const frames = this.#frames;
		this.#frames = [];
		this.#size = 0;
		this.#onMessage(frames, this);
	}
}

/*
 * Listens. type: "ROUTER", "REP" or "PUB"; place: {path} or {host, port}; onMessage(frames, peer): each message of each peer (of a PUB's: none). Resolves to
 * {publish(frames)} when it does.
 */
export function listen(type, place, onMessage) {
	const peers = new Set();
	const subscribe = (frames, peer) => {
		const [filter] = frames;
		if (filter[0] === 1) peer.subscriptions.push(filter.subarray(1));
		else if (filter[0] === 0) {
			const at = peer.subscriptions.findIndex((s) => s.equals(filter.subarray(1)));
			if (at >= 0) peer.subscriptions.splice(at, 1);
		}
	};
	const server = createServer({ noDelay: true }, (socket) => {
		const peer = new Peer(socket, type, type === "PUB" ? subscribe : onMessage);
		peers.add(peer);
		socket.on("close", () => peers.delete(peer));
	});
	return new Promise((resolve, reject) => {
		server.on("error", reject);
		server.listen(place, () =>
			resolve({
				publish: (frames) => {
					const topic = Buffer.from(frames[0]);
					return Promise.all([...peers].filter((p) => p.subscriptions.some((s) => topic.subarray(0, s.length).equals(s))).map((p) => p.send(frames)));
				},
			}),
		);
	});
}
