/* The module tree: counts by verdict, coloured by the worst; choosing a node narrows the table. */

const NODE_HEIGHT = 28; // as in the style

/** For each node the places at and below it, by verdict. */
function countsOf(model) {
  const { parents } = model.tree;
  const counts = parents.map(() => new Uint32Array(model.levels.length));
  for (let row = 0; row < model.count; row += 1) counts[model.nodeOf(row)][model.levelCode[row]] += 1;
  for (let node = parents.length - 1; node >= 0; node -= 1) {
    const above = counts[parents[node]];
    if (above) counts[node].forEach((count, level) => { above[level] += count; });
  }
  return counts;
}

/** Which nodes are the given one or below it; all, if none is given. */
function nodesBelow(tree, chosen) {
  const inside = new Uint8Array(tree.parents.length);
  tree.parents.forEach((parent, node) => {
    inside[node] = chosen === null || node === chosen || (parent >= 0 && inside[parent]) ? 1 : 0;
  });
  return inside;
}

class ModuleTree {
  constructor(model, box, onChoose) {
    Object.assign(this, { model, box, onChoose, chosen: null, at: 0 });
    this.counts = countsOf(model);
    this.children = model.tree.parents.map(() => []);
    this.roots = [];
    model.tree.parents.forEach((parent, node) => (this.children[parent] ?? this.roots).push(node));
    this.open = new Set(this.roots.length <= 3 ? this.roots : []);
    this.pane = new Pane(box, NODE_HEIGHT, (...part) => this.draw(...part));
    box.addEventListener("keydown", (event) => this.onKey(event));
    box.addEventListener("click", (event) => this.onClick(event));
    this.flatten();
  }

  /** The nodes that are not hidden in a closed one, from top to bottom. */
  flatten() {
    this.flat = [];
    const visit = (nodes, depth) => {
      nodes.forEach((node, index) => {
        this.flat.push({ node, depth, index, of: nodes.length });
        if (this.open.has(node)) visit(this.children[node], depth + 1);
      });
    };
    visit(this.roots, 0);
    this.pane.count = this.flat.length;
    this.pane.drawNow();
  }

  /** Open everything around a node and bring it into sight. */
  reveal(node) {
    for (let above = this.model.tree.parents[node]; above >= 0; above = this.model.tree.parents[above]) {
      this.open.add(above);
    }
    this.flatten();
    this.at = this.flat.findIndex((item) => item.node === node);
    this.pane.reveal(this.at, true);
    this.pane.drawNow();
  }

  choose(node) {
    this.chosen = this.chosen === node ? null : node;
    this.pane.drawNow();
    this.onChoose(this.chosen);
  }

  toggle(node, open = !this.open.has(node)) {
    if (open) this.open.add(node);
    else this.open.delete(node);
    this.flatten();
  }

  // ---- drawing ----

  draw(first, end, above, below) {
    const items = this.flat.slice(first, end).map((item, i) => this.item(item, first + i));
    this.box.replaceChildren(gap(above), ...items, gap(below));
    const isSeen = this.at >= first && this.at < end;
    if (isSeen) this.box.setAttribute("aria-activedescendant", `node-${this.flat[this.at].node}`);
    else this.box.removeAttribute("aria-activedescendant");
  }

  item({ node, depth, index, of }, place) {
    const worst = this.model.levels[worstOf(this.counts[node])];
    const said = this.said(node);
    const attributes = {
      id: `node-${node}`,
      class: place === this.at ? "node at" : "node",
      title: said,
      "data-node": node,
      role: "treeitem",
      "aria-label": said,
      "aria-level": depth + 1,
      "aria-setsize": of,
      "aria-posinset": index + 1,
      "aria-selected": String(node === this.chosen),
      "aria-expanded": this.children[node].length ? String(this.open.has(node)) : null,
    };
    const element = make(
      "div",
      attributes,
      make("span", { class: "twisty", "data-twisty": true }),
      make("span", { class: "level", "data-level": worst }),
      make("span", { class: "label" }, make("bdi", {}, this.model.tree.labels[node])),
      ...this.chips(node),
    );
    element.style.paddingInlineStart = `${6 + depth * 12}px`;
    return element;
  }

  /** How many places have each of the verdicts that matter, or how many there are. */
  chips(node) {
    const counts = this.counts[node];
    const grave = this.model.levels.indexOf("passed on");
    const chips = [];
    for (let level = counts.length - 1; level >= grave; level -= 1) {
      if (counts[level]) chips.push(badge(this.model.levels[level], grouped(counts[level])));
    }
    if (chips.length) return chips;
    const all = counts.reduce((sum, count) => sum + count, 0);
    return [make("span", { class: "count" }, grouped(all))];
  }

  said(node) {
    const counts = this.counts[node];
    const parts = this.model.levels.map((level, code) => counts[code] && `${grouped(counts[code])} ${level}`);
    return `${this.model.tree.labels[node]}: ${parts.filter(Boolean).reverse().join(", ")}`;
  }

  // ---- keys and clicks ----

  onClick(event) {
    const element = event.target.closest("[data-node]");
    if (!element) return;
    const node = Number(element.dataset.node);
    this.at = this.flat.findIndex((item) => item.node === node);
    if ("twisty" in event.target.dataset) this.toggle(node);
    else this.choose(node);
  }

  onKey(event) {
    const act = {
      ArrowDown: () => this.go(this.at + 1),
      ArrowUp: () => this.go(this.at - 1),
      Home: () => this.go(0),
      End: () => this.go(this.flat.length - 1),
      ArrowRight: () => this.right(),
      ArrowLeft: () => this.left(),
      Enter: () => this.choose(this.flat[this.at].node),
      " ": () => this.choose(this.flat[this.at].node),
    }[event.key];
    if (!act || this.flat.length === 0) return;
    event.preventDefault();
    act();
  }

  go(place) {
    this.at = Math.max(0, Math.min(this.flat.length - 1, place));
    this.pane.reveal(this.at);
    this.pane.drawNow();
  }

  right() {
    const { node } = this.flat[this.at];
    if (this.children[node].length === 0) return;
    if (this.open.has(node)) this.go(this.at + 1);
    else this.toggle(node, true);
  }

  left() {
    const { node } = this.flat[this.at];
    const parent = this.model.tree.parents[node];
    if (this.open.has(node)) this.toggle(node, false);
    else if (parent >= 0) this.go(this.flat.findIndex((item) => item.node === parent));
  }
}

function worstOf(counts) {
  return counts.findLastIndex((count) => count > 0);
}

function gap(height) {
  const element = make("div", { role: "presentation" });
  element.style.height = `${height}px`;
  return element;
}
