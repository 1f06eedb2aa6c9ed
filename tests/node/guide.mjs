// Runs a program with the output of console.log as one JSON array at the end: `guide.mjs FILE`. Messages are texts, other
// values JSON.
const lines = [];
console.log = (...values) => lines.push(values.map((v) => (typeof v === "string" ? v : JSON.stringify(v))).join(" "));
await import(process.argv[2]);
process.stdout.write(JSON.stringify(lines), () => process.exit(0));
