/* The table of all places: sorted, filtered, and made only as far as it is seen. */

const ROW_HEIGHT = 30; // as in the style
const MOST_PRINTED = 300;
const ALIGNMENT_HINT = "How sure it is that the two calls belong together, from 0 to 1";

/** The columns in the order of the table: ours, then those of the specification, its result first. */
function tableColumns(model) {
  const number = { title: "#", kind: "number", cell: (row) => row, key: (row) => row };
  const verdict = { title: "Verdict", kind: "level", cell: model.level, key: (row) => model.levelCode[row] };
  const others = model.columns.filter((column) => column !== model.result);
  const specified = { hint: "A column of the specification" };
  return [
    { ...number, width: 40 + 7 * String(model.count).length, hint: "Row of the table, counted from 0" },
    { ...model.calls, kind: "name", width: 256, hint: "The call, and whether it went forward or backward" },
    { ...model.slot, kind: "name", width: 88, hint: "Which input, parameter or output" },
    { ...verdict, width: 120, hint: "What became of the place" },
    measured("Error", model.error, "Relative; also the smallest tolerance that would have passed"),
    measured("Rounding", model.tolerance, "How large an error rounding explains here"),
    ...(model.alignment ? [measured("Alignment", model.alignment.share, ALIGNMENT_HINT)] : []),
    ...[model.result, ...others].map((column) => ({ ...column, ...specified, width: widthOf(column) })),
  ];
}

function measured(title, values, hint) {
  const cell = (row) => (Number.isNaN(values[row]) ? null : values[row]);
  return { title, kind: "number", cell, key: (row) => values[row], width: 90, hint };
}

function widthOf({ title, words = [] }) {
  const longest = words.slice(0, 200).reduce((length, word) => Math.max(length, String(word).length), 0);
  return Math.max(100, Math.min(360, 24 + 7.6 * Math.max(title.length + 1, longest)));
}

/** All rows by a column; what has no number comes last in both directions. */
function sortedRows(count, column, falling) {
  const keys = new Float64Array(count);
  for (let row = 0; row < count; row += 1) keys[row] = column.key(row);
  const rows = Uint32Array.from({ length: count }, (_, row) => row);
  const sign = falling ? -1 : 1;
  return rows.sort((a, b) => {
    const x = keys[a];
    const y = keys[b];
    if (x === y) return a - b;
    if (Number.isNaN(x)) return Number.isNaN(y) ? a - b : 1;
    if (Number.isNaN(y)) return -1;
    return x < y ? -sign : sign;
  });
}

class Table {
  constructor(model, box, onSelect) {
    Object.assign(this, { model, box, onSelect, selected: null, sorted: { column: 0, falling: false } });
    this.columns = tableColumns(model);
    this.order = sortedRows(model.count, this.columns[0], false);
    this.keep = new Uint8Array(model.count).fill(1);
    this.body = make("tbody");
    this.head = make("tr", { "aria-rowindex": 1 });
    this.table = make(
      "table",
      { role: "grid", tabindex: 0, "aria-label": "Places", "aria-colcount": this.columns.length },
      make("colgroup", {}, ...this.columns.map(columnWidth)),
      make("thead", {}, this.head),
      this.body,
    );
    this.table.style.width = `${this.columns.reduce((sum, column) => sum + column.width, 0)}px`;
    box.append(this.table);
    this.pane = new Pane(box, ROW_HEIGHT, (...part) => this.draw(...part));
    this.pane.top = ROW_HEIGHT;
    this.table.addEventListener("keydown", (event) => this.onKey(event));
    this.body.addEventListener("click", (event) => this.onClick(event));
    this.drawHead();
  }

  /** Show the rows that are kept, in the order chosen. */
  show(keep) {
    this.keep = keep;
    this.visible = this.order.filter((row) => keep[row]);
    this.pane.count = this.visible.length;
    this.table.setAttribute("aria-rowcount", this.visible.length + 1);
    this.pane.drawNow();
  }

  select(row, centred = false) {
    this.selected = row;
    const index = this.visible.indexOf(row);
    if (index >= 0) this.pane.reveal(index, centred);
    this.pane.drawNow();
  }

  sortBy(number) {
    const column = this.columns[number];
    const again = this.sorted.column === number;
    const starts = column.kind === "number" && number > 0; // with the largest
    if (again && this.sorted.falling !== starts) this.sorted = { column: 0, falling: false };
    else this.sorted = { column: number, falling: again ? !starts : starts };
    this.order = sortedRows(this.model.count, this.columns[this.sorted.column], this.sorted.falling);
    this.drawHead();
    this.box.scrollTop = 0;
    this.show(this.keep);
  }

  // ---- drawing ----

  drawHead() {
    const { column: chosen, falling } = this.sorted;
    const focused = this.head.contains(document.activeElement);
    const cells = this.columns.map((column, number) => {
      const direction = falling ? "descending" : "ascending";
      const sort = number === chosen ? direction : "none";
      const onclick = () => this.sortBy(number);
      const button = make("button", { type: "button", title: column.hint, onclick }, column.title);
      return make("th", { scope: "col", "aria-sort": sort, class: column.kind }, button);
    });
    this.head.replaceChildren(...cells);
    if (focused) cells[chosen].firstChild.focus();
  }

  draw(first, end, above, below) {
    const rows = [];
    for (let index = first; index < end; index += 1) rows.push(this.row(index));
    this.body.replaceChildren(spacer(above), ...rows, spacer(below));
    const seen = this.body.querySelector("[aria-selected=true]");
    if (seen) this.table.setAttribute("aria-activedescendant", seen.id);
    else this.table.removeAttribute("aria-activedescendant");
  }

  row(index) {
    const row = this.visible[index];
    const cells = this.columns.map((column) => this.cell(column, row));
    const attributes = { id: `row-${row}`, "data-row": row, "aria-rowindex": index + 2 };
    return make("tr", { ...attributes, "aria-selected": String(row === this.selected) }, ...cells);
  }

  cell(column, row) {
    const value = column.cell(row);
    if (column.kind === "level") return make("td", {}, badge(value));
    if (column.kind === "number") {
      return make("td", { class: typeof value === "string" ? "number dim" : "number" }, shown(value));
    }
    const text = shown(value).trim();
    return make("td", { class: column.kind, title: text.length > 12 ? text : null }, make("bdi", {}, text));
  }

  /** Rows on paper: not only those that the screen has room for. */
  print(isPrinting) {
    this.pane.all = isPrinting ? MOST_PRINTED : false;
    this.pane.drawNow();
  }

  // ---- choosing a row ----

  onClick(event) {
    const element = event.target.closest("tr[data-row]");
    if (element && String(getSelection()) === "") this.onSelect(Number(element.dataset.row));
  }

  onKey(event) {
    const page = Math.max(1, Math.floor(this.box.clientHeight / ROW_HEIGHT) - 2);
    const far = this.visible.length;
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -far, End: far };
    if (!(event.key in moves) || event.target !== this.table || this.visible.length === 0) return;
    event.preventDefault();
    const at = this.visible.indexOf(this.selected);
    const next = at < 0 ? 0 : Math.min(this.visible.length - 1, Math.max(0, at + moves[event.key]));
    this.onSelect(this.visible[next]);
  }
}

function columnWidth(column) {
  const element = make("col");
  element.style.width = `${column.width}px`;
  return element;
}

function spacer(height) {
  const row = make("tr", { class: "spacer", "aria-hidden": "true" }, make("td"));
  row.style.height = `${height}px`;
  return row;
}
