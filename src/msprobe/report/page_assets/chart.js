/* The chart: which part of the picture is shown, and what the pointer and the keys do with it. */

const REACH = 9; // how near, in pixels, the pointer must be
const FEWEST = 8; // places that the closest zoom shows

class Chart extends Plot {
  constructor(model, canvas, tip, onSelect) {
    super(model, canvas);
    Object.assign(this, { tip, onSelect });
    this.all();
    new ResizeObserver(() => this.drawSoon()).observe(canvas);
    this.listen();
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => this.onDown(event));
    canvas.addEventListener("pointermove", (event) => this.onMove(event));
    canvas.addEventListener("pointerup", (event) => this.onUp(event));
    canvas.addEventListener("pointerleave", () => this.hover(null));
    canvas.addEventListener("dblclick", () => this.all());
    canvas.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    canvas.addEventListener("keydown", (event) => this.onKey(event));
  }

  show(keep) {
    this.keep = keep;
    this.drawSoon();
  }

  select(row) {
    this.selected = row;
    const at = row === null ? null : this.model.position[row];
    if (at !== null && (at < this.from || at >= this.to)) this.pan(at - (this.from + this.to) / 2);
    this.drawSoon();
  }

  // ---- the part that is shown ----

  all() {
    this.from = 0;
    this.to = Math.max(1, this.model.count);
    this.drawSoon();
  }

  zoom(factor, centre = (this.from + this.to) / 2) {
    const span = Math.min(this.model.count, Math.max(FEWEST, (this.to - this.from) * factor));
    const share = (centre - this.from) / (this.to - this.from);
    this.from = centre - span * share;
    this.to = this.from + span;
    this.pan(0);
  }

  pan(places) {
    const span = this.to - this.from;
    this.from = Math.max(0, Math.min(Math.max(0, this.model.count - span), this.from + places));
    this.to = this.from + span;
    this.drawSoon();
  }

  /** The row nearest to a point of the canvas, if one is near; a graver verdict goes first. */
  rowAt(x, y) {
    const start = Math.max(0, Math.floor(this.positionAt(x - REACH)));
    const end = Math.min(this.model.count, Math.ceil(this.positionAt(x + REACH)));
    let found = null;
    let best = Infinity;
    for (let place = start; place < end; place += 1) {
      const row = this.rows[place];
      const error = this.model.error[row];
      if (Number.isNaN(error)) continue;
      const distance = Math.hypot(this.x(place) - x, this.y(error) - y);
      const score = distance - this.model.levelCode[row] - (this.keep[row] ? REACH : 0);
      if (distance <= REACH && score < best) [best, found] = [score, row];
    }
    return found;
  }

  drawSoon() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.draw();
    });
  }

  // ---- pointer and keys ----

  onDown(event) {
    if (event.button !== 0) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.drag = { start: event.offsetX, end: event.offsetX };
  }

  onMove(event) {
    if (this.drag) {
      this.drag.end = Math.max(MARGIN.left, Math.min(MARGIN.left + this.width, event.offsetX));
      this.drawSoon();
    } else {
      this.hover(this.rowAt(event.offsetX, event.offsetY));
    }
  }

  onUp(event) {
    const { drag } = this;
    this.drag = null;
    if (!drag) return;
    const [a, b] = [drag.start, drag.end].sort((p, q) => p - q);
    if (b - a > 5) {
      const [from, to] = [this.positionAt(a), this.positionAt(b)];
      this.from = from;
      this.to = from + Math.min(this.model.count, Math.max(FEWEST, to - from));
      this.pan(0);
      return;
    }
    const row = this.rowAt(event.offsetX, event.offsetY);
    if (row !== null) this.onSelect(row);
    this.drawSoon();
  }

  onWheel(event) {
    if (!event.ctrlKey && !event.shiftKey && document.activeElement !== this.canvas) return;
    event.preventDefault();
    this.zoom(event.deltaY > 0 || event.deltaX > 0 ? 1.25 : 0.8, this.positionAt(event.offsetX));
  }

  onKey(event) {
    const quarter = (this.to - this.from) / 4;
    const step = event.shiftKey ? (sign) => this.pan(sign * quarter) : (sign) => this.step(sign);
    const act = {
      ArrowRight: () => step(1), ArrowLeft: () => step(-1),
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2),
      Home: () => this.all(), 0: () => this.all(), Escape: () => this.all(),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  /** Select the next place to the right or left that is drawn and kept. */
  step(sign) {
    const { model } = this;
    let place = this.selected === null ? Math.floor(this.from) - 1 : model.position[this.selected];
    for (place += sign; place >= 0 && place < model.count; place += sign) {
      const row = this.rows[place];
      if (this.keep[row] && !Number.isNaN(model.error[row])) {
        this.onSelect(row);
        return;
      }
    }
  }

  hover(row) {
    if (row === this.hovered) return;
    this.hovered = row;
    this.canvas.style.cursor = row === null ? "" : "pointer";
    this.tip.hidden = row === null;
    if (row !== null) this.drawTip(row);
    this.drawSoon();
  }

  drawTip(row) {
    const { model, tip } = this;
    const error = `error ${shown(model.error[row])}`;
    const tolerance = model.tolerance[row] > 0 ? `, rounding explains ${shown(model.tolerance[row])}` : "";
    tip.replaceChildren(
      make("b", {}, model.name(row)), make("br"), badge(model.level(row)), ` ${error}${tolerance}`,
    );
    const x = this.x(model.position[row]);
    const isRight = x > MARGIN.left + this.width / 2;
    tip.style.left = isRight ? "" : `${x + 14}px`;
    tip.style.right = isRight ? `${this.canvas.clientWidth - x + 14}px` : "";
    tip.style.top = `${Math.min(this.y(model.error[row]), MARGIN.top + this.height - 60)}px`;
  }
}

