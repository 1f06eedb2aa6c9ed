// The text format of Prometheus, as far as this server writes it.

const LINE = /^([a-z_:][\w:]*)(?:\{(.*)\})? (\S+)/i;
const LABEL = /([a-z_]\w*)="((?:[^"\\]|\\.)*)"/gi;

/** Samples by name: lists of {labels, value}. */
export function parseMetrics(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    if (!line || line.startsWith("#")) continue;
    const found = LINE.exec(line);
    if (!found) continue;
    const labels = {};
    for (const [, name, value] of (found[2] ?? "").matchAll(LABEL)) labels[name] = value;
    if (!samples.has(found[1])) samples.set(found[1], []);
    samples.get(found[1]).push({ labels, value: Number(found[3]) });
  }
  return samples;
}

/** The sum of a metric over its labels; null if the server does not have it. */
export function total(samples, name, labels = {}) {
  const all = samples.get(name)?.filter((sample) => Object.entries(labels).every(([key, value]) => sample.labels[key] === value));
  return all?.length ? all.reduce((sum, sample) => sum + sample.value, 0) : null;
}

/** A quantile of what a histogram has counted since an earlier look; null if it has counted nothing. */
export function quantile(now, before, name, share) {
  const buckets = (samples) => new Map((samples?.get(`${name}_bucket`) ?? []).map((sample) => [sample.labels.le, sample.value]));
  const newest = buckets(now);
  const oldest = buckets(before);
  const counts = [...newest].map(([le, value]) => [le === "+Inf" ? Infinity : Number(le), value - (oldest.get(le) ?? 0)]);
  counts.sort(([one], [other]) => one - other);
  const all = counts.at(-1)?.[1] ?? 0;
  if (!all) return null;
  const index = counts.findIndex(([, value]) => value >= all * share);
  const [bound, value] = counts[index];
  const [low, below] = index ? counts[index - 1] : [0, 0];
  return bound === Infinity ? low : low + ((bound - low) * (all * share - below)) / (value - below || 1);
}
