/* The picture of all errors: where a place lies on the canvas, and how it is drawn. */

const MARGIN = { left: 58, right: 14, top: 20, bottom: 40 };
const BAND = 22; // room above for infinite errors, below for none at all

/** What is drawn: the places from `from` to `to` in the order of execution. */
class Plot {
  constructor(model, canvas) {
    Object.assign(this, { model, canvas, from: 0, to: 1, selected: null, hovered: null, drag: null });
    this.pen = canvas.getContext("2d");
    this.rows = new Uint32Array(model.count); // in the order of execution
    model.position.forEach((place, row) => {
      this.rows[place] = row;
    });
    this.keep = new Uint8Array(model.count).fill(1);
    this.powers = powersOf(model);
    this.dress();
  }

  /** Take the colours of the theme. */
  dress() {
    this.ink = inkOf(this.canvas);
  }

  // ---- where things are ----

  x(position) {
    return MARGIN.left + ((position + 0.5 - this.from) / (this.to - this.from)) * this.width;
  }

  y(error) {
    if (error === 0) return MARGIN.top + this.height - BAND / 4;
    if (error === Infinity) return MARGIN.top + BAND / 4;
    const { low, high } = this.powers;
    return MARGIN.top + BAND + ((high - Math.log10(error)) / (high - low)) * (this.height - 2 * BAND);
  }

  positionAt(x) {
    return this.from + ((x - MARGIN.left) / this.width) * (this.to - this.from);
  }

  /** The first place that is shown, and the one behind the last. */
  ends() {
    return [Math.max(0, Math.floor(this.from)), Math.min(this.model.count, Math.ceil(this.to))];
  }

  // ---- drawing ----

  draw() {
    const { canvas, pen } = this;
    const ratio = window.devicePixelRatio || 1;
    const { clientWidth, clientHeight } = canvas;
    canvas.width = Math.round(clientWidth * ratio);
    canvas.height = Math.round(clientHeight * ratio);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.width = Math.max(1, clientWidth - MARGIN.left - MARGIN.right);
    this.height = Math.max(1, clientHeight - MARGIN.top - MARGIN.bottom);
    this.drawAxes();
    this.drawTolerance();
    this.drawMarks();
    this.drawChosen();
    if (this.drag) this.drawDrag();
  }

  drawAxes() {
    const { pen, ink, powers } = this;
    pen.font = ink.font;
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    const line = (y, text) => {
      pen.fillStyle = ink.grid;
      pen.fillRect(MARGIN.left, Math.round(y), this.width, 1);
      pen.fillStyle = ink.dim;
      pen.fillText(text, MARGIN.left - 8, y);
    };
    const steps = Math.max(1, Math.ceil((powers.high - powers.low) / (this.height / 30)));
    for (let power = powers.low; power <= powers.high; power += steps) {
      line(this.y(10 ** power), powerText(power));
    }
    line(this.y(0), "equal");
    if (powers.infinite) line(this.y(Infinity), "∞, NaN");
    this.drawPlaces();
  }

  drawPlaces() {
    const { pen } = this;
    const bottom = MARGIN.top + this.height;
    pen.textBaseline = "top";
    pen.textAlign = "center";
    const step = niceStep((this.to - this.from) / (this.width / 110));
    for (let place = Math.ceil(this.from / step) * step; place < this.to; place += step) {
      pen.fillText(grouped(place), this.x(place), bottom + 6);
    }
    pen.textAlign = "right";
    pen.fillText("order of execution; drag to zoom", MARGIN.left + this.width, bottom + 22);
  }

  /** What rounding explains: the area below the largest tolerance of each column of pixels. */
  drawTolerance() {
    const { pen, model } = this;
    const columns = new Float64Array(Math.ceil(this.width) + 1).fill(NaN);
    const [start, end] = this.ends();
    for (let place = start; place < end; place += 1) {
      const tolerance = model.tolerance[this.rows[place]];
      const column = Math.round(this.x(place) - MARGIN.left);
      if (tolerance > 0 && !(columns[column] >= tolerance)) columns[column] = tolerance;
    }
    const bottom = MARGIN.top + this.height;
    pen.fillStyle = this.ink.band;
    pen.beginPath();
    let y = bottom;
    columns.forEach((tolerance, column) => {
      if (Number.isNaN(tolerance)) return;
      pen.lineTo(MARGIN.left + column, y);
      y = Math.min(bottom, this.y(tolerance));
      pen.lineTo(MARGIN.left + column, y);
    });
    pen.lineTo(MARGIN.left + this.width, y);
    pen.lineTo(MARGIN.left + this.width, bottom);
    pen.fill();
  }

  /** The marks, the grave ones on top; what lies on a pixel already drawn alike is left out. */
  drawMarks() {
    const { model, rows, pen } = this;
    const [start, end] = this.ends();
    const places = model.levels.map(() => [[], []]);
    const seen = new Set();
    for (let place = start; place < end; place += 1) {
      const row = rows[place];
      const error = model.error[row];
      if (Number.isNaN(error)) continue;
      const [x, y, level, kept] = [this.x(place), this.y(error), model.levelCode[row], this.keep[row]];
      const pixel = ((Math.round(x) * 4096 + Math.round(y)) * 8 + level) * 2 + kept;
      if (seen.has(pixel)) continue;
      seen.add(pixel);
      places[level][kept].push(x, y);
    }
    for (const kept of [0, 1]) {
      pen.globalAlpha = kept ? 1 : 0.18;
      model.levels.forEach((level, code) => this.drawLevel(level, places[code][kept]));
    }
    pen.globalAlpha = 1;
  }

  drawLevel(level, points) {
    const { pen, ink } = this;
    pen.fillStyle = ink.levels[level];
    pen.beginPath();
    for (let i = 0; i < points.length; i += 2) MARKS[level](pen, points[i], points[i + 1]);
    pen.fill();
    if (level !== "entered" && level !== "originated") return;
    pen.strokeStyle = ink.paper;
    pen.lineWidth = 1;
    pen.stroke();
  }

  drawChosen() {
    const { ink, model } = this;
    this.drawPointer(this.hovered, ink.dim);
    const x = this.drawPointer(model.culprit, ink.levels.originated);
    if (x !== null) this.drawFlag(x, ink.levels.originated);
    this.drawPointer(this.selected, ink.text);
  }

  /** A line and a ring at a row; says where, or null if it is out of sight. */
  drawPointer(row, colour) {
    const { pen, model } = this;
    const x = row === null ? -1 : this.x(model.position[row]);
    if (x < MARGIN.left || x > MARGIN.left + this.width) return null;
    pen.fillStyle = colour;
    pen.globalAlpha = 0.55;
    pen.fillRect(Math.round(x), MARGIN.top, 1, this.height);
    pen.globalAlpha = 1;
    if (!Number.isNaN(model.error[row])) this.drawRing(x, this.y(model.error[row]), colour);
    return x;
  }

  drawRing(x, y, colour) {
    this.pen.strokeStyle = colour;
    this.pen.lineWidth = 2;
    this.pen.beginPath();
    this.pen.arc(x, y, 8, 0, 2 * Math.PI);
    this.pen.stroke();
  }

  drawFlag(x, colour) {
    const { pen } = this;
    const isRight = x > MARGIN.left + this.width - 120;
    pen.fillStyle = colour;
    pen.font = `600 ${this.ink.font}`;
    pen.textBaseline = "bottom";
    pen.textAlign = isRight ? "right" : "left";
    pen.fillText("first difference", x + (isRight ? -4 : 4), MARGIN.top - 3);
  }

  drawDrag() {
    const [a, b] = [this.drag.start, this.drag.end].sort((p, q) => p - q);
    this.pen.fillStyle = this.ink.text;
    this.pen.globalAlpha = 0.12;
    this.pen.fillRect(a, MARGIN.top, b - a, this.height);
    this.pen.globalAlpha = 1;
  }
}

/** The colours of the theme, which only a drawn element can tell. */
function inkOf(canvas) {
  const probe = make("span", { hidden: true });
  canvas.after(probe);
  const colour = (name) => {
    probe.style.color = `var(--${name.replace(" ", "-")})`;
    return getComputedStyle(probe).color;
  };
  const ink = { levels: {}, font: `11px ${getComputedStyle(canvas).fontFamily}` };
  for (const name of ["text", "dim", "grid", "band", "paper"]) ink[name] = colour(name);
  for (const level of Object.keys(MARKS)) ink.levels[level] = colour(level);
  probe.remove();
  return ink;
}

/** The marks: told apart by form as well as by colour. */
const MARKS = {
  same: (pen, x, y) => pen.rect(x - 1, y - 1, 2, 2),
  "not judged": (pen, x, y) => pen.rect(x - 1, y - 1, 2, 2),
  rounding: (pen, x, y) => {
    pen.moveTo(x + 2, y);
    pen.arc(x, y, 2, 0, 2 * Math.PI);
  },
  "passed on": (pen, x, y) => polygon(pen, x, y, [[0, -4], [3.5, 2.5], [-3.5, 2.5]]),
  "cannot tell": (pen, x, y) => polygon(pen, x, y, [[0, 4], [3.5, -2.5], [-3.5, -2.5]]),
  entered: (pen, x, y) => polygon(pen, x, y, [[0, -6.5], [6.5, 0], [0, 6.5], [-6.5, 0]]),
  originated: (pen, x, y) => pen.rect(x - 4.5, y - 4.5, 9, 9),
};

function polygon(pen, x, y, corners) {
  corners.forEach(([dx, dy], i) => (i ? pen.lineTo(x + dx, y + dy) : pen.moveTo(x + dx, y + dy)));
  pen.closePath();
}

/** The powers of ten that the axis reaches from and to. */
function powersOf(model) {
  let [low, high, infinite] = [Infinity, -Infinity, false];
  for (const values of [model.error, model.tolerance]) {
    for (const value of values) {
      if (value === Infinity) infinite = true;
      else if (value > 0) [low, high] = [Math.min(low, value), Math.max(high, value)];
    }
  }
  if (high < low) return { low: -8, high: 0, infinite };
  const powers = { low: Math.floor(Math.log10(low)), high: Math.ceil(Math.log10(high)), infinite };
  return powers.high > powers.low ? powers : { ...powers, high: powers.low + 1 };
}

function powerText(power) {
  const raised = (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit] ?? "⁻";
  return power === 0 ? "1" : `10${[...String(power)].map(raised).join("")}`;
}

/** The next of 1, 2, 5, 10, 20, 50... */
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least) ?? 1;
}
