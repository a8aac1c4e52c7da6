/* The comparison as the page holds it: unpacked once, asked by row. */

/** The bytes that the page carries, compressed, in an element. */
async function unpacked(element) {
  const text = atob(element.textContent);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i += 1) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

/** The numbers that `where` tells of. */
function numbersAt(buffer, where) {
  const Kind = where.bytes === 8 ? Float64Array : Float32Array;
  return new Kind(buffer, where.at, where.count);
}

/** A column: its title, the cell of a row, and a number to sort by; NaN sorts last. */
function columnOf(title, packed, buffer) {
  if (packed.words) return wordsColumn(title, packed);
  const values = numbersAt(buffer, packed);
  const { texts = {}, unit = "" } = packed;
  const text = (row) => (unit && !Number.isNaN(values[row]) ? `${shown(values[row])}${unit}` : values[row]);
  return { title, kind: "number", cell: (row) => texts[row] ?? text(row), key: (row) => values[row] };
}

function wordsColumn(title, { words, codes }) {
  let ranks = null;
  const key = (row) => (ranks ??= ranksOf(words))[codes[row]];
  return { title, kind: "words", words, codes, cell: (row) => words[codes[row]], key };
}

/** For each word its place in the alphabet; an empty one has none. */
function ranksOf(words) {
  const order = new Intl.Collator("en", { numeric: true }).compare;
  const sorted = words.map((word, number) => number);
  sorted.sort((a, b) => order(String(words[a]), String(words[b])));
  const ranks = new Float64Array(words.length);
  sorted.forEach((number, rank) => {
    ranks[number] = words[number] === "" ? NaN : rank;
  });
  return ranks;
}

/** Everything that the parts of the page ask about a row. */
function modelOf(facts, buffer) {
  const count = facts.level.length;
  const { callOf, position } = spread(facts.calls, count);
  const slot = wordsColumn("Place", facts.slot);
  const callName = (row) => facts.calls.name[callOf[row]];
  const name = (row) => (slot.cell(row) ? `${callName(row)}.${slot.cell(row)}` : callName(row));
  const columns = facts.columns.map((packed) => columnOf(packed.header, packed, buffer));
  return {
    count,
    name,
    slot,
    columns,
    position, // of a row, in the order of execution
    calls: wordsColumn("Call", { words: facts.calls.name, codes: callOf }),
    result: columns[facts.result],
    reason: wordsColumn("Reason", facts.reason).cell,
    levels: facts.levels,
    levelCode: facts.level,
    level: (row) => facts.levels[facts.level[row]],
    error: numbersAt(buffer, facts.error),
    tolerance: numbersAt(buffer, facts.tolerance),
    alignment: facts.alignment && alignmentOf(facts.alignment, buffer),
    nodeOf: (row) => facts.calls.node[callOf[row]],
    frames: (row) => facts.calls.stack.words[facts.calls.stack.codes[callOf[row]]],
    tree: facts.tree,
    target: sideOf(facts.target, name, buffer),
    golden: sideOf(facts.golden, (row) => facts.renamed[row] ?? name(row), buffer),
    culprit: facts.culprit,
    first: facts.first,
  };
}

/** How sure each pair is that was found without a mapping. */
function alignmentOf({ share, why }, buffer) {
  return { share: numbersAt(buffer, share), why: wordsColumn("Alignment", why).cell };
}

/** Which call each row belongs to, and its place in the order of execution. */
function spread(calls, count) {
  const callOf = new Uint32Array(count);
  const starts = new Uint32Array(calls.rows.length);
  let row = 0;
  calls.rows.forEach((rows, call) => {
    starts[call] = row;
    callOf.fill(call, row, row + rows);
    row += rows;
  });
  const position = new Uint32Array(count);
  let place = 0;
  for (const call of calls.order) {
    for (let i = 0; i < calls.rows[call]; i += 1) position[starts[call] + i] = place++;
  }
  return { callOf, position };
}

/** What one run has at a row. */
function sideOf(packed, name, buffer) {
  const missing = new Set(packed.missing);
  const { headers, words, codes } = packed.kind;
  const values = numbersAt(buffer, packed.statistics);
  const size = packed.statistics.headers.length;
  const file = wordsColumn("File", packed.file).cell;
  return {
    name,
    has: (row) => !missing.has(row),
    description: (row) => headers.map((header, i) => [header, words[codes[row]][i]]),
    statistics: (row) => packed.statistics.headers.map((header, i) => [header, values[row * size + i]]),
    file: (row) => (file(row).startsWith(".") ? name(row) + file(row) : file(row)),
  };
}
