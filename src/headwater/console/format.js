// Numbers, sizes, times and bytes as people read them.

const COUNT = new Intl.NumberFormat("en");
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function count(number) {
  return number === null || number === undefined ? "" : COUNT.format(number);
}

/** A number with the word for what is counted. */
export function several(number, one, more = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : more}`;
}

export function bytes(number) {
  if (number === null || number === undefined) return "";
  let unit = 0;
  let size = number;
  while (size >= 1024 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit && size < 10 ? size.toFixed(1) : COUNT.format(Math.round(size))} ${UNITS[unit]}`;
}

export function rate(number, unit = "/s") {
  return `${number >= 100 || number === 0 ? COUNT.format(Math.round(number)) : number.toFixed(1)}${unit}`;
}

export function seconds(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  if (value < 0.001) return `${Math.round(value * 1e6)} µs`;
  if (value < 1) return `${value < 0.01 ? (value * 1000).toFixed(1) : Math.round(value * 1000)} ms`;
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  return value < 172800 ? `${Math.round(value / 3600)} h` : `${Math.round(value / 86400)} days`;
}

const two = (number) => String(number).padStart(2, "0");

/** The time of day, and as much of the date as differs from today. */
export function time(ms) {
  const at = new Date(ms);
  const now = new Date();
  const minutes = `${two(at.getHours())}:${two(at.getMinutes())}`;
  if (at.toDateString() === now.toDateString()) return `${minutes}:${two(at.getSeconds())}.${String(at.getMilliseconds()).padStart(3, "0")}`;
  return at.getFullYear() === now.getFullYear() ? `${day(at).slice(5)} ${minutes}:${two(at.getSeconds())}` : `${day(at)} ${minutes}`;
}

export function moment(text) {
  if (!text) return "";
  const at = new Date(text);
  return `${day(at)} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

function day(at) {
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

/** The value of an input of type datetime-local, in milliseconds resolution. */
export function localInput(ms) {
  const at = new Date(ms);
  return `${day(at)}T${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function ago(text, now = Date.now()) {
  if (!text) return "";
  const passed = (now - Date.parse(text)) / 1000;
  return passed >= 0 ? `${seconds(passed)} ago` : `in ${seconds(-passed)}`;
}

/** When something is due; now, if that has passed. */
export function until(text) {
  return text && Date.parse(text) > Date.now() ? ago(text) : "now";
}

/** Lines of a hex dump: offset, 16 bytes, and what of them is printable ASCII. */
export function hexLines(data, most) {
  const lines = [];
  for (let start = 0; start < Math.min(data.length, most); start += 16) {
    const part = data.subarray(start, start + 16);
    const hex = Array.from(part, (byte) => byte.toString(16).padStart(2, "0"));
    const left = hex.slice(0, 8).join(" ").padEnd(23);
    const right = hex.slice(8).join(" ").padEnd(23);
    const text = Array.from(part, (byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${start.toString(16).padStart(8, "0")}  ${left}  ${right}  ${text}`);
  }
  return lines;
}

export function hexPreview(data, most = 48) {
  return Array.from(data.subarray(0, most), (byte) => byte.toString(16).padStart(2, "0")).join(" ");
}

/** Text on one line, so that a row of a list stays a row. */
export function oneLine(text, most = 400) {
  const part = text.length > most ? `${text.slice(0, most)}…` : text;
  return part.replace(/[\s\u0000-\u001f\u007f]+/g, " ");
}
