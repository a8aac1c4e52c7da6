/* The page: its parts, and what happens between them. */

/** Which rows pass: all words of the text, one of the verdicts, one of the results, below the node. */
function keptRows(model, wanted) {
  const keep = new Uint8Array(model.count);
  const inside = nodesBelow(model.tree, wanted.node);
  const words = wanted.text.toLowerCase().split(/\s+/).filter(Boolean);
  const { codes } = model.result;
  for (let row = 0; row < model.count; row += 1) {
    keep[row] =
      (wanted.levels.size === 0 || wanted.levels.has(model.levelCode[row])) &&
      (wanted.results.size === 0 || wanted.results.has(codes[row])) &&
      inside[model.nodeOf(row)] &&
      words.every((word) => model.lowered[row].includes(word))
        ? 1
        : 0;
  }
  return keep;
}

/** What the filter looks into: the name, and the golden run's where it is another. */
function searchedText(model, row) {
  const [name, other] = [model.name(row), model.golden.name(row)];
  return (name === other ? name : `${name} ${other}`).toLowerCase();
}

class Page {
  constructor(model) {
    this.model = model;
    this.wanted = { text: "", levels: new Set(), results: new Set(), node: null };
    byId("workspace").hidden = false;
    this.table = new Table(model, byId("grid"), (row) => this.select(row));
    this.tree = new ModuleTree(model, byId("tree"), (node) => this.narrow({ node }));
    this.drawLegend();
    this.chart = new Chart(model, byId("chart"), byId("tip"), (row) => this.select(row, { centred: true }));
    this.drawChips();
    this.listen();
    this.filter();
    this.start();
  }

  /** The row that the address names, or the answer's, is shown from the beginning. */
  start() {
    const row = this.addressed() ?? this.model.culprit ?? this.model.first;
    if (row !== null) this.select(row, { centred: true, quietly: true });
    else byId("detail-body").append(make("p", {}, "Select a place in the table or in the chart."));
    byId("chart-text").textContent = chartText(this.model);
  }

  listen() {
    byId("filter").addEventListener("input", (event) => this.narrow({ text: event.target.value }));
    byId("tree-all").addEventListener("click", () => this.tree.choose(this.tree.chosen));
    byId("zoom-in").addEventListener("click", () => this.chart.zoom(0.5));
    byId("zoom-out").addEventListener("click", () => this.chart.zoom(2));
    byId("zoom-all").addEventListener("click", () => this.chart.all());
    addEventListener("hashchange", () => this.follow());
    addEventListener("click", (event) => this.onLink(event));
    addEventListener("keydown", (event) => this.onKey(event));
    addEventListener("beforeprint", () => this.print(true));
    addEventListener("afterprint", () => this.print(false));
  }

  // ---- choosing rows ----

  select(row, { centred = false, quietly = false } = {}) {
    this.table.select(row, centred);
    this.chart.select(row);
    if (centred) this.tree.reveal(this.model.nodeOf(row));
    byId("detail-body").replaceChildren(...detailOf(this.model, row));
    byId("detail-body").scrollTop = 0;
    if (quietly) return;
    history.replaceState(null, "", `#row=${row}`);
    byId("said").textContent = `${this.model.name(row)}: ${this.model.level(row)}`;
  }

  /** Go to the row that the address names, even if the filter hides it. */
  follow() {
    const row = this.addressed();
    if (row === null) return;
    if (!this.table.keep[row]) this.reset();
    this.select(row, { centred: true });
    byId("workspace").scrollIntoView({ block: "nearest" });
  }

  addressed() {
    const found = /^#row=(\d+)$/.exec(location.hash);
    const row = found ? Number(found[1]) : -1;
    return row >= 0 && row < this.model.count ? row : null;
  }

  onLink(event) {
    const link = event.target.closest?.("a[href^='#row=']");
    if (!link) return;
    event.preventDefault();
    history.replaceState(null, "", link.getAttribute("href"));
    this.follow();
  }

  onKey(event) {
    const isTyping = event.target.matches?.("input");
    if (event.key === "/" && !isTyping) {
      event.preventDefault();
      byId("filter").focus();
    } else if (event.key === "Escape" && isTyping) {
      event.target.value = "";
      this.narrow({ text: "" });
    } else if (event.key === "Enter" && event.target === this.table.table) {
      byId("detail").focus();
    } else if (event.key === "Escape" && byId("detail").contains(event.target)) {
      this.table.table.focus();
    }
  }

  /** Paper is light, and has room for rows that the screen has not. */
  print(isPrinting) {
    const root = document.documentElement;
    if (isPrinting) this.theme = root.dataset.theme;
    root.dataset.theme = isPrinting ? "light" : this.theme;
    this.table.print(isPrinting);
    this.chart.dress();
    this.chart.draw();
  }

  // ---- filtering ----

  narrow(change) {
    const start = performance.now();
    Object.assign(this.wanted, change);
    this.filter();
    performance.measure("msprobe-filter", { start, end: performance.now() });
  }

  filter() {
    const keep = keptRows(this.model, this.wanted);
    byId("grid").scrollTop = 0;
    this.table.show(keep);
    this.chart.show(keep);
    const { length } = this.table.visible;
    const part = length === this.model.count ? "" : `${grouped(length)} of `;
    byId("shown").textContent = `${part}${grouped(this.model.count)} places`;
    byId("tree-all").hidden = this.wanted.node === null;
  }

  reset() {
    this.wanted.levels.clear();
    this.wanted.results.clear();
    byId("filter").value = "";
    this.tree.chosen = null;
    this.tree.pane.drawNow();
    for (const chip of document.querySelectorAll(".chips button")) chip.setAttribute("aria-pressed", "false");
    this.narrow({ text: "", node: null });
  }

  /** Buttons that show only some verdicts or results, the grave ones first. */
  drawChips() {
    const { model, wanted } = this;
    const levels = tally(model.levelCode, model.levels.length);
    for (let code = levels.length - 1; code >= 0; code -= 1) {
      if (!levels[code]) continue;
      byId("level-chips").append(this.chip(wanted.levels, code, badge(model.levels[code]), levels[code]));
    }
    const results = tally(model.result.codes, model.result.words.length);
    results.forEach((count, code) => {
      const word = model.result.words[code] || "(empty)";
      byId("result-chips").append(this.chip(wanted.results, code, word, count));
    });
  }

  chip(chosen, code, content, count) {
    const onclick = (event) => {
      if (!chosen.delete(code)) chosen.add(code);
      event.currentTarget.setAttribute("aria-pressed", String(chosen.has(code)));
      this.narrow({});
    };
    const number = make("span", { class: "count" }, grouped(count));
    return make("button", { type: "button", "aria-pressed": "false", onclick }, content, number);
  }

  drawLegend() {
    const present = new Set(this.model.levelCode);
    const items = this.model.levels.filter((level, code) => present.has(code) && level !== "not judged");
    byId("legend").append(
      ...items.map((level) => make("li", {}, badge(level))),
      make("li", { class: "band" }, "rounding explains"),
    );
  }
}

function tally(codes, length) {
  const counts = new Uint32Array(length);
  for (const code of codes) counts[code] += 1;
  return counts;
}

/** The chart in words. */
function chartText(model) {
  let largest = null;
  let beyond = 0;
  for (let row = 0; row < model.count; row += 1) {
    if (model.error[row] > (model.error[largest] ?? -1)) largest = row;
    if (model.error[row] > model.tolerance[row]) beyond += 1;
  }
  if (largest === null) return "No place has a known error.";
  return [
    `${grouped(model.count)} places in the order of execution.`,
    `The largest error is ${shown(model.error[largest])}, at ${model.name(largest)}.`,
    `At ${grouped(beyond)} places it is larger than rounding explains. The table has every number.`,
  ].join(" ");
}

// ---- light and dark ----

const THEMES = { auto: "Theme: auto", light: "Theme: light", dark: "Theme: dark" };

function startTheme(redraw) {
  const button = byId("theme");
  const names = Object.keys(THEMES);
  const set = (theme) => {
    document.documentElement.dataset.theme = theme;
    button.textContent = THEMES[theme];
    redraw();
  };
  const next = () => names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length];
  button.addEventListener("click", () => set(next()));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  button.hidden = false;
  set("auto");
}

async function start() {
  const [facts, numbers] = await Promise.all([unpacked(byId("facts")), unpacked(byId("numbers"))]);
  const model = modelOf(JSON.parse(new TextDecoder().decode(facts)), numbers);
  model.lowered = Array.from({ length: model.count }, (_, row) => searchedText(model, row));
  const page = new Page(model);
  startTheme(() => {
    page.chart.dress();
    page.chart.drawSoon();
  });
  page.chart.draw();
  document.body.offsetHeight; // lays the page out, which belongs to what is marked
  performance.mark("msprobe-interactive");
}

start().catch((error) => {
  byId("trouble").hidden = false;
  byId("trouble").textContent = `The table cannot be shown: ${error.message}. A browser of 2024 can.`;
  throw error;
});
