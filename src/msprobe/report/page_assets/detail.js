/* The panel of one place: its verdict and why, both sides, the specified result, the call stack. */

const UNKNOWN = "–";

/** Everything about a row, as elements. */
function detailOf(model, row) {
  return [
    nameOf(model, row),
    verdictOf(model, row),
    alignedOf(model, row),
    sidesOf(model, row),
    specifiedOf(model, row),
    filesOf(model, row),
    modulesOf(model, row),
    stackOf(model, row),
  ].filter(Boolean);
}

function part(title, ...children) {
  return make("section", {}, make("h3", {}, title), ...children);
}

function nameOf(model, row) {
  const name = model.name(row);
  const copied = make("span", { class: "copied", role: "status" });
  const text = make("code", {}, name);
  const onclick = async () => {
    copied.textContent = (await copyText(name, text)) ? "copied" : "press Ctrl+C";
  };
  const button = make("button", { type: "button", onclick }, "Copy name");
  const link = make("a", { href: `#row=${row}` }, `row ${row}`);
  return make("div", { class: "name" }, text, make("p", {}, button, link, copied));
}

/** Copy a text; where the browser forbids it, select what shows it. */
async function copyText(text, element) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    getSelection().selectAllChildren(element);
    return document.execCommand("copy");
  }
}

function verdictOf(model, row) {
  const reason = model.reason(row);
  const facts = [
    ["Error", shownOr(model.error[row]), "relative; the smallest tolerance that would have passed"],
    ["Rounding explains", shownOr(model.tolerance[row]), "by the dtype, and how much was summed"],
  ];
  return part(
    "Verdict",
    make("p", { class: "verdict" }, badge(model.level(row)), reason ? ` ${reason}.` : null),
    factList(facts),
  );
}

/** How sure it is that the two calls belong together, where no mapping says so. */
function alignedOf({ alignment }, row) {
  if (!alignment || Number.isNaN(alignment.share[row])) return null;
  const sure = `${Math.round(100 * alignment.share[row])} % sure: ${alignment.why(row)}.`;
  return part("Alignment without a mapping", make("p", {}, sure));
}

function factList(facts) {
  const lines = facts.map(([term, value, hint]) => [make("dt", { title: hint }, term), make("dd", {}, value)]);
  return make("dl", {}, ...lines.flat());
}

function shownOr(value) {
  return value === null || Number.isNaN(value) ? UNKNOWN : shown(value, 5);
}

/** Target and golden run beside each other, and how far the numbers are apart. */
function sidesOf(model, row) {
  const { target, golden } = model;
  const lines = [["Name", target.name(row), golden.name(row)]].filter(([, ours, theirs]) => ours !== theirs);
  lines.push(...beside(target.description(row), golden.description(row)));
  lines.push(...beside(target.statistics(row), golden.statistics(row)));
  const head = ["", "Target", "Golden", "Difference"].map((title) => make("th", { scope: "col" }, title));
  const body = lines.filter((line) => line.slice(1).some(isKnown)).map((line) => sidesLine(model, row, line));
  const table = make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
  return part("Both sides", table);
}

function beside(ours, theirs) {
  return ours.map(([title, cell], i) => [title, cell, theirs[i][1]]);
}

function isKnown(cell) {
  return cell !== "" && cell !== "N/A" && !Number.isNaN(cell);
}

function sidesLine(model, row, [title, ours, theirs]) {
  const text = (side, cell) => (side.has(row) ? shown(shortened(cell), 5) : UNKNOWN);
  const isSame = Object.is(ours, theirs) || !(model.target.has(row) && model.golden.has(row));
  const cells = [text(model.target, ours), text(model.golden, theirs), differenceOf(ours, theirs)];
  return make(
    "tr",
    { class: isSame ? null : "differs" },
    make("th", { scope: "row" }, title),
    ...cells.map((cell) => make("td", {}, cell)),
  );
}

/** A number that is written out in full, as a number. */
function shortened(cell) {
  const isLong = typeof cell === "string" && cell.length > 12 && Number.isFinite(Number(cell));
  return isLong ? Number(Number(cell).toPrecision(9)) : cell;
}

function differenceOf(ours, theirs) {
  if ([ours, theirs].some((cell) => cell === "" || typeof cell === "boolean")) return "";
  const difference = Number(ours) - Number(theirs);
  if (Number.isNaN(difference)) return "";
  return difference === 0 ? "0" : `${difference > 0 ? "+" : "−"}${shown(Math.abs(difference))}`;
}

function specifiedOf(model, row) {
  const facts = model.columns.map((column) => [column.title, shownOr(column.cell(row)) || UNKNOWN, null]);
  return part("By the specification", factList(facts));
}

function filesOf(model, row) {
  const files = ["target", "golden"].map((side) => [side, model[side].file(row)]).filter(([, file]) => file);
  if (files.length === 0) return null;
  return part("Tensor files", factList(files.map(([side, file]) => [side, make("code", {}, file), null])));
}

function modulesOf(model, row) {
  const { labels, parents } = model.tree;
  const path = [];
  for (let node = model.nodeOf(row); node >= 0; node = parents[node]) path.unshift(labels[node]);
  return part("Modules", make("ol", { class: "path" }, ...path.map((label) => make("li", {}, label))));
}

function stackOf(model, row) {
  const frames = model.frames(row);
  if (frames.length === 0) return null;
  const lines = frames.map((frame) => make("li", {}, frame.trim()));
  return part("Call stack, innermost first", make("ol", { class: "stack" }, ...lines));
}
