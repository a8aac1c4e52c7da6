/* Elements, numbers as texts, and lists of which only the visible part is made. */

/** An element; texts among its children are never read as markup. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function byId(id) {
  return document.getElementById(id);
}

/** A verdict with its mark. */
function badge(level, text = level) {
  return make("span", { class: "level", "data-level": level }, text);
}

/** A number short enough to be read; other cells as they are. */
function shown(cell, digits = 3) {
  if (typeof cell !== "number") return cell === null || cell === undefined ? "" : String(cell);
  if (!Number.isFinite(cell)) return Number.isNaN(cell) ? "NaN" : cell > 0 ? "∞" : "−∞";
  if (Number.isInteger(cell) && Math.abs(cell) < 1e9) return String(cell);
  const size = Math.abs(cell);
  if (size < 1e-3 || size >= 1e6) return cell.toExponential(digits - 1);
  return String(Number(cell.toPrecision(digits + 1)));
}

function grouped(number) {
  return number.toLocaleString("en");
}

/** Which items of a list of equal heights can be seen; `draw(first, end)` makes these. */
class Pane {
  constructor(box, height, draw) {
    Object.assign(this, { box, height, draw, count: 0, all: false });
    box.addEventListener("scroll", () => this.drawSoon(), { passive: true });
    new ResizeObserver(() => this.drawSoon()).observe(box);
  }

  drawSoon() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.drawNow();
    });
  }

  drawNow() {
    const { box, height, count } = this;
    const seen = Math.ceil(box.clientHeight / height) + 1;
    const first = this.all ? 0 : Math.max(0, Math.min(Math.floor(box.scrollTop / height), count - 1) - 4);
    const end = this.all ? Math.min(count, this.all) : Math.min(count, first + seen + 8);
    this.draw(first, end, first * height, (count - end) * height);
  }

  /** Scroll so that an item can be seen; `centred` leaves room around it if it was out of sight. */
  reveal(index, centred = false) {
    const { box, height, top = 0 } = this;
    const start = index * height;
    const room = box.clientHeight - top;
    if (start >= box.scrollTop && start + height <= box.scrollTop + room) return;
    if (centred) box.scrollTop = start - room / 4;
    else box.scrollTop = start < box.scrollTop ? start : start + height - room;
  }
}
