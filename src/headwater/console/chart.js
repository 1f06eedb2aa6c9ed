// A small chart of the last minutes: a line, its newest value, and its largest one as the scale.

import { h, svg } from "./dom.js";

const WIDTH = 320;
const HEIGHT = 90;

export class Chart {
  constructor(title, format) {
    this._title = title;
    this._format = format;
    this._line = svg("path", { class: "line" });
    this._area = svg("path", { class: "area" });
    this._value = h("span", { class: "value" }, "–");
    this._most = h("span", { class: "note" });
    this._picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": title }, this._area, this._line);
    this.element = h("figure", { class: "chart panel" }, h("figcaption", {}, h("span", { class: "label" }, title), this._value), this._picture, this._most);
  }

  /** Points are {at, value}; value null: not known. */
  show(points, from, to) {
    const known = points.filter((point) => point.value !== null);
    const newest = known.at(-1)?.value ?? null;
    const most = Math.max(0, ...known.map((point) => point.value));
    const x = (at) => ((at - from) / (to - from)) * WIDTH;
    const y = (value) => HEIGHT - 2 - (most ? (value / most) * (HEIGHT - 8) : 0);
    let line = "";
    let open = false;
    for (const point of points) {
      if (point.value !== null) line += `${open ? "L" : "M"}${x(point.at).toFixed(1)} ${y(point.value).toFixed(1)}`;
      open = point.value !== null;
    }
    this._line.setAttribute("d", line);
    this._area.setAttribute("d", known.length > 1 && known.length === points.length ? `${line}L${x(known.at(-1).at).toFixed(1)} ${HEIGHT}L${x(known[0].at).toFixed(1)} ${HEIGHT}Z` : "");
    this._value.textContent = newest === null ? "–" : this._format(newest);
    this._most.textContent = known.length ? `most ${this._format(most)}` : "";
    this._picture.setAttribute("aria-label", `${this._title}: now ${this._value.textContent}, ${this._most.textContent}`);
  }
}
