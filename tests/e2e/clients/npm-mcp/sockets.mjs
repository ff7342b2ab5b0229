// WebSockets through the forward with the published client: what it saw, as one JSON object. argv: ws://… of an echo service that knows a few words.
import WebSocket from "ws";

const url = process.argv[2];
const seen = {};
const open = () => new Promise((done, failed) => { const w = new WebSocket(url); w.on("open", () => done(w)); w.on("error", failed); });
const next = (w) => new Promise((done) => w.once("message", (data, binary) => done([data, binary])));
const closed = (w) => new Promise((done) => w.once("close", (code, reason) => done([code, reason.toString()])));

let w = await open();
w.send("häl\u0000lo");
seen.text = (await next(w)).map(String);
const bytes = Buffer.alloc(1 << 20, 0).map((_, i) => i & 255);
w.send(bytes);
const [back, binary] = await next(w);
seen.binary = [bytes.equals(back), binary];
w.send("frag", { fin: false }); w.send("men", { fin: false }); w.send("ted", { fin: true });
seen.fragments = String((await next(w))[0]);
const pong = new Promise((done) => w.once("pong", (d) => done(String(d))));
w.ping("are you there");
seen.pong = await pong;
w.close(4321, "enough");
seen.ours = await closed(w);
w = await open();
w.send("close 4007 your turn");
seen.theirs = await closed(w);
w = await open();
w.send("cut");
seen.cut = (await closed(w))[0];
if (process.argv[3]) {
  seen.redirected = await new Promise((done) => {
    const r = new WebSocket(process.argv[3], { followRedirects: true });
    r.on("error", (e) => done(e.message)); r.on("open", () => done("open"));
  });
}
console.log(JSON.stringify(seen));
