/* Cells as what V8 evaluates in its REPL mode: TypeScript without its types, imports as awaited calls. Lines stay where they are. */
import { stripTypeScriptTypes } from "node:module";
import { parse } from "acorn";

const OPTIONS = { ecmaVersion: "latest", sourceType: "script", allowAwaitOutsideFunction: true, allowImportExportEverywhere: true, allowHashBang: true };

/* The name under which cells reach the kernel (runtime.mjs). */
const US = 'globalThis[Symbol.for("cubicle")]';

/* {code, tree}: JavaScript as it is, TypeScript stripped. Throws the SyntaxError of the JavaScript when it is neither. */
function parseCell(code) {
	let first;
	try {
		return { code, tree: parse(code, OPTIONS) };
	} catch (error) {
		first = error;
	}
	for (const mode of ["strip", "transform"]) {
		try {
			const stripped = stripTypeScriptTypes(code, { mode });
			return { code: stripped, tree: parse(stripped, OPTIONS) };
		} catch {
			/* not this way either */
		}
	}
	throw first;
}

/* Every node, and whether it stands in a function. */
function* walk(node, inside = false) {
	yield [node, inside];
	const within = inside || /Function|StaticBlock|PropertyDefinition/.test(node.type);
	for (const value of Object.values(node))
		for (const child of Array.isArray(value) ? value : [value]) if (child && typeof child.type === "string") yield* walk(child, within);
}

const nameOf = (node) => (node.type === "Literal" ? node.raw : node.name);

/* import a, {b as c} from "x" */
function importStatement(node, code) {
	const source = code.slice(node.source.start, node.source.end);
	const attributes = (node.attributes ?? []).map((a) => `${nameOf(a.key)}: ${a.value.raw}`);
	const module = `await ${US}.import(${source}${attributes.length ? `, {with: {${attributes.join(", ")}}}` : ""})`;
	const whole = node.specifiers.find((s) => s.type === "ImportNamespaceSpecifier");
	const named = node.specifiers.filter((s) => s !== whole).map((s) => [s.type === "ImportDefaultSpecifier" ? "default" : nameOf(s.imported), s.local.name]);
	if (!whole && !named.length) return `${module};`;
	const names = named.map(([from, to]) => `${from}: ${to}`).join(", ");
	const list = JSON.stringify(named.map(([from]) => from.replace(/^["']|["']$/g, "")));
	if (!whole) return `const {${names}} = ${US}.pick(${module}, ${list}, ${source});`;
	return `const ${whole.local.name} = ${module};` + (named.length ? ` const {${names}} = ${US}.pick(${whole.local.name}, ${list}, ${source});` : "");
}

/* What to replace of one node: [start, end, text] each. None lies in another. */
function edit(node, inside, code) {
	switch (node.type) {
		case "AwaitExpression":
			if (inside) return [];
			return [[node.start + "await".length, node.start + "await".length, ` ${US}.hold(`], [node.end, node.end, ")"]];
		case "ForOfStatement":
			if (inside || !node.await) return [];
			return [[node.right.start, node.right.start, `${US}.each(`], [node.right.end, node.right.end, ")"]];
		case "ImportDeclaration":
			return [[node.start, node.end, importStatement(node, code)]];
		case "ImportExpression":
			return [[node.start, node.start + "import".length, `${US}.import`]];
		case "MetaProperty":
			return node.meta.name === "import" ? [[node.start, node.end, `${US}.meta`]] : [];
		case "ExportNamedDeclaration":
			if (node.declaration) return [[node.start, node.declaration.start, ""]];
			return [[node.start, node.end, node.source ? `await ${US}.import(${node.source.raw});` : ";"]];
		case "ExportAllDeclaration":
			return [[node.start, node.end, `await ${US}.import(${node.source.raw});`]];
		case "ExportDefaultDeclaration":
			/* A declaration needs a name to be one; without it, it is a value. */
			if (/Declaration$/.test(node.declaration.type) && node.declaration.id) return [[node.start, node.declaration.start, ""]];
			return [[node.start, node.declaration.start, "("], [node.declaration.end, node.end, ");"]];
	}
	return [];
}

/* Throws a SyntaxError when the cell is no JavaScript and no TypeScript. */
export function transform(cell) {
	const { code, tree } = parseCell(cell);
	const edits = [];
	for (const [node, inside] of walk(tree)) edits.push(...edit(node, inside, code));
	/* From the end; of two at one place first the one that takes something away. */
	edits.sort((a, b) => b[0] - a[0] || b[1] - a[1]);
	let out = code;
	for (const [start, end, text] of edits) {
		const lost = out.slice(start, end).split("\n").length - text.split("\n").length;
		out = out.slice(0, start) + text + "\n".repeat(Math.max(lost, 0)) + out.slice(end);
	}
	return out.replace(/^#!/, "//");
}

/* For is_complete_request. */
export function completeness(code) {
	try {
		parse(code, OPTIONS);
		return { status: "complete" };
	} catch (error) {
		return error.pos >= code.trimEnd().length ? { status: "incomplete", indent: "" } : { status: "complete" };
	}
}
