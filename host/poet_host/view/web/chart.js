"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
const [FORWARD, AGAIN, PAGE_IN, PAGE_OUT, WAIT, COMMIT] = data.kinds.keys();
// What stands where in the rows of the data.
const T = {name: 0, what: 1, bytes: 2, computed: 3, ins: 4, outs: 5, uj: 6, us: 7, inUj: 8, inUs: 9, outUj: 10, outUs: 11};
const BAR = {statement: 0, tensor: 1, kind: 2, begin: 3, end: 4};
const BOX = {statement: 0, tensor: 1, kind: 2, offset: 3, bytes: 4, begin: 5, ready: 6, end: 7, workspace: 8};
const ROW = {statement: 0, tensor: 1, offset: 2, ram: 3, begin: 4, takes: 5, took: 6, what: 7};

// Is the run, if there is one, of the board that the plan is for?
const same = !data.run || data.run.board === data.board;

// Words and numbers.

const number = (value, digits = 0) => value == null ? "" :
  value.toLocaleString("en-US", {minimumFractionDigits: digits, maximumFractionDigits: digits});
const bytes = value => `${number(value)} bytes`;
// Times in tables: of a fast board's step in microseconds; of a run on another board by its own.
const unit = us => us < data.short_us
  ? {name: "µs", long: "ms", text: us => us == null ? "" : number(us, 1)}
  : {name: "ms", long: "s", text: us => us == null ? "" : number(us / 1e3, 3)};
const planned = unit(data.views[0].end_us), measured = same ? planned : unit(data.run.step_us ?? 0);
const uj = value => value >= 1e6 ? `${number(value / 1e6, 3)} J` : `${number(value, value && value < 10 ? 3 : 1)} µJ`;
function time(us) {
  if (us >= 1e6) return `${number(us / 1e6, 3)} s`;
  return us >= 1e3 ? `${number(us / 1e3, 3)} ms` : `${number(us, 1)} µs`;
}
const share = value => `${value < 0 ? "\u2212" : ""}${number(Math.abs(100 * value), 1)} %`;
const counted = (count, what) => `${number(count)} ${what}${count === 1 ? "" : "s"}`;
const signed = value => `${value >= 0 ? "+" : "\u2212"}${number(Math.abs(100 * value), 1)} %`;

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Why a tensor left and came back.

const cost = ([us, energy]) => `${uj(energy)} and ${time(us)}`;
const named = tensors => tensors.length > 3
  ? `${tensors.slice(0, 3).join(", ")} and ${tensors.length - 3} more` : tensors.join(", ");

function why(away) {
  const name = data.tensors[away.node][T.name];
  const parts = [`Out of RAM for ${time(away.back_us - away.left_us)}, which freed ${bytes(away.size_bytes)}.`];
  const [us, energy] = away.spent;
  if (away.how === AGAIN) {
    parts.push(`Computing ${name} again costs ${cost(away.spent)};`);
    parts.push(away.instead
      ? `paging it would cost ${cost(away.instead)}${better(energy, away.instead[1])}.`
      : "there is no storage to page it to.");
  } else {
    const hidden = us > 0 ? `, ${share(away.hidden_us / us)} of it while the processor computes` : "";
    parts.push(`Paging it costs ${cost(away.spent)}${hidden};`);
    if (!away.instead) parts.push("it cannot be computed again.");
    else {
      const need = away.missing.length ? `, and first ${named(away.missing)}, not in RAM then` : "";
      parts.push(`computing it again would cost ${cost(away.instead)}${need}${need ? "" : better(energy, away.instead[1])}.`);
    }
  }
  const over = away.without_bytes - data.plan.ram_bytes;
  parts.push(`Had it stayed, all else the same, ${bytes(away.without_bytes)} would have been in use: ` + (over > 0
    ? `${number(over)} more than the budget.`
    : away.place_taken ? "within the budget by their sum, but others took its place."
    : "within the budget, and its place stayed free: a better plan keeps it."));
  return parts.join(" ");
}
function better(spent, instead) {
  const gain = instead - spent;
  if (Math.abs(gain) < 0.0005) return ", the same";
  return gain > 0 ? `, so ${uj(gain)} are saved` : `, ${uj(-gain)} less`;
}

// Totals.

function card(title, value, ...lines) {
  $("cards").append(el("div", {class: "card"}, el("span", {}, title), el("b", {}, value),
    ...lines.filter(Boolean).map(line => el("span", {}, line))));
}
// The step's time; the last bar may end before the processor has done the work of a transfer.
const promised = data.plan.time_us ?? data.views[0].end_us;
function totals() {
  const {plan, keep, run} = data, view = data.views[0];
  $("name").textContent = data.name;
  const on = data.board ? `on ${data.board}, ` : "";
  $("about").textContent = `${on}${number(data.rows.length)} statements in ${bytes(data.plan_bytes)}, method ${plan.method}` +
    (plan.note ? `: ${plan.note}` : "") + (run ? `; run of ${run.steps.length} steps on ${run.board}` : "");
  const times = (mine, all) => all ? `${number(mine / all, 2)} × keeping everything (${all === keep.energy_uj ? uj(all) : time(all)})` : "";
  if (plan.energy_uj != null) card("energy of a step", uj(plan.energy_uj), times(plan.energy_uj, keep?.energy_uj),
    run?.energy_uj != null && `measured ${uj(run.energy_uj)}, commit included, by the powers of the board's states`);
  card("time of a step", time(promised), times(promised, keep?.time_us),
    run?.step_us != null && `measured ${time(run.step_us)}${same ? ` (${signed(promised / run.step_us - 1)} predicted)` : ` on ${run.board}`}, and ${time(run.time_us - run.step_us)} of commit and answers to the host`);
  card("RAM at the peak", bytes(view.peak_bytes), `budget ${bytes(plan.ram_bytes)}`,
    keep?.peak_bytes && `keeping everything needs ${number(keep.peak_bytes)}`,
    run && `measured high-water mark ${number(run.peak_bytes)}`);
  if (plan.bound_uj != null) card("proof", plan.status === "optimal" ? "optimal" : `gap ${share(plan.gap)}`,
    `no plan needs less than ${uj(plan.bound_uj)}`, plan.solve_s ? `solved in ${number(plan.solve_s, 1)} s` : "");
  const again = data.away.filter(one => one.how === AGAIN), paged = data.away.filter(one => one.how === PAGE_IN);
  card("computed again, paged", `${again.length}, ${paged.length}`,
    `for ${uj(sum(again))} and ${uj(sum(paged))}`);
  data.kinds.forEach((word, kind) => {
    if (!data.views.some(view => view.bars.some(bar => bar[BAR.kind] === kind))) return;
    $("legend").append(el("li", {}, el("i", {style: `background:var(--k${kind})`}), word));
  });
  $("foot").textContent = `poet-host ${data.version}. Times and energies of the plan are those of the profile that it was solved for.`;
}
const sum = list => list.reduce((total, one) => total + one.spent[1], 0);

// The chart. One time axis; lanes of every view, then the memory of every view.

const chart = $("chart"), overview = $("overview"), tip = $("tip");
// A run on another board than the plan's takes another time altogether: it is drawn as long as the
// plan, and told as it was.
for (const view of data.views) {
  view.scale = !same && view.end_us > 0 ? data.views[0].end_us / view.end_us : 1;
  if (view.scale === 1) continue;
  for (const [list, places] of [[view.bars, [BAR.begin, BAR.end]], [view.boxes, [BOX.begin, BOX.ready, BOX.end]], [view.used, [0]]])
    for (const one of list) for (const place of places) one[place] *= view.scale;
  view.end_us *= view.scale;
  view.peak_us *= view.scale;
}
const end = Math.max(...data.views.map(view => view.end_us), 1e-3);
const top = Math.max(...data.views.map(view => view.peak_bytes), 1);
const limit = data.plan.ram_bytes;
const height = (limit < 1.6 * top ? Math.max(limit, top) : top) * 1.09;
const LEFT = 92, RIGHT = 14, AXIS = 24, LANE = 24, GAP = 6;
const MEMORY = data.views.length > 1 ? 250 : 360;
const at = {t0: 0, t1: end};
let width = 0, colours = {}, panels = [], hits = null, chosen = null, hovered = null, wanted = false;

function layout() {
  panels = [];
  let y = AXIS;
  data.views.forEach((view, i) => {
    panels.push({view, i, lanes: y});
    y += 2 * LANE + GAP + (data.views.length > 1 ? 12 : 4);
  });
  for (const panel of panels) {
    panel.top = y + 6;
    y += MEMORY + 18;
  }
  const style = getComputedStyle(document.documentElement);
  for (const key of ["paper", "card", "ink", "quiet", "rule", "focus", "limit", "on"])
    colours[key] = style.getPropertyValue(`--${key}`).trim();
  colours.kinds = data.kinds.map((_, kind) => style.getPropertyValue(`--k${kind}`).trim());
  width = chart.clientWidth;
  sized(chart, width, y);
  sized(overview, width, 46);
  redraw();
}
function sized(canvas, w, h) {
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(w * scale);
  canvas.height = Math.round(h * scale);
  canvas.style.height = `${h}px`;
  canvas.getContext("2d").setTransform(scale, 0, 0, scale, 0, 0);
}
const inner = () => width - LEFT - RIGHT;
const x = us => LEFT + (us - at.t0) / (at.t1 - at.t0) * inner();
const us = px => at.t0 + (px - LEFT) / inner() * (at.t1 - at.t0);
const DIM = .2;  // of what was not searched for, and not chosen
const laneOf = kind => kind === PAGE_IN || kind === PAGE_OUT ? 1 : 0;
const barTop = (panel, kind) => panel.lanes + laneOf(kind) * (LANE + 2);
const boxY = (panel, offset) => panel.top + MEMORY * (1 - offset / height);

function redraw() {
  if (wanted) return;
  wanted = true;
  requestAnimationFrame(() => { wanted = false; draw(); });
}
function draw() {
  const g = chart.getContext("2d");
  g.fillStyle = colours.paper;
  g.fillRect(0, 0, width, chart.clientHeight);
  g.font = "11px system-ui, sans-serif";
  g.textBaseline = "middle";
  drawAxis(g);
  g.save();
  g.beginPath();
  g.rect(LEFT, 0, inner(), chart.clientHeight);
  g.clip();
  for (const panel of panels) { drawBars(g, panel); drawBoxes(g, panel); }
  g.restore();
  for (const panel of panels) drawLabels(g, panel);
  drawOverview();
}
function step(range, count) {
  const rough = range / count, power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find(factor => factor * power >= rough * (1 - 1e-9));
}
function drawAxis(g) {
  const every = step(at.t1 - at.t0, Math.max(3, inner() / 110));
  const [unit, word] = at.t1 >= 2e6 ? [1e6, "s"] : at.t1 >= 2e3 ? [1e3, "ms"] : [1, "µs"];
  const digits = Math.max(0, -Math.floor(Math.log10(every / unit) + 1e-9));
  g.textAlign = "center";
  for (let t = Math.ceil(at.t0 / every) * every; t <= at.t1; t += every) {
    g.fillStyle = colours.rule;
    g.fillRect(Math.round(x(t)), AXIS - 5, 1, chart.clientHeight);
    g.fillStyle = colours.quiet;
    g.fillText(number(t / unit, digits) + (t === 0 ? ` ${word}` : ""), Math.min(Math.max(x(t), LEFT + 12), width - 24), 11);
  }
  g.textAlign = "right";
  g.fillText(`time, ${word}`, LEFT - 10, 11);
}
const faded = tensor => hits ? !hits.has(tensor) : chosen != null && chosen.tensor >= 0 && chosen.tensor !== tensor;
function drawBars(g, panel) {
  const drawn = new Map();  // last pixel of a colour in a lane: what is narrower is drawn once
  for (const bar of panel.view.bars) {
    if (bar[BAR.end] < at.t0 || bar[BAR.begin] > at.t1) continue;
    const kind = bar[BAR.kind], from = x(bar[BAR.begin]), to = Math.max(x(bar[BAR.end]), from + 1);
    const dim = faded(bar[BAR.tensor]), key = `${kind}${dim}`;
    if (to <= (drawn.get(key) ?? -1)) continue;
    drawn.set(key, to);
    g.globalAlpha = dim ? DIM : kind === WAIT ? .55 : 1;
    g.fillStyle = colours.kinds[kind];
    g.fillRect(from, barTop(panel, kind), to - from, LANE - 2);
    g.globalAlpha = dim ? 2 * DIM : 1;
    if (to - from > 3 && !dim) { g.fillStyle = colours.paper; g.fillRect(to - .6, barTop(panel, kind), .6, LANE - 2); }
    if (bar[BAR.tensor] >= 0 && kind !== WAIT) label(g, data.tensors[bar[BAR.tensor]][T.name], from, to, barTop(panel, kind) + LANE / 2 - 1);
  }
  g.globalAlpha = 1;
}
function label(g, text, from, to, y) {
  const left = Math.max(from, LEFT), right = Math.min(to, width - RIGHT);
  if (right - left < 26) return;
  const room = Math.floor((right - left - 8) / 5.9);
  if (text.length > room && room < 5) return;
  g.fillStyle = colours.on;
  g.textAlign = "center";
  g.fillText(text.length > room ? `${text.slice(0, room - 1)}…` : text, (left + right) / 2, y);
}
function drawBoxes(g, panel) {
  const {view} = panel;
  g.fillStyle = colours.card;
  g.fillRect(LEFT, panel.top, inner(), MEMORY);
  for (const box of view.boxes) {
    if (box[BOX.end] < at.t0 || box[BOX.begin] > at.t1) continue;
    const from = x(box[BOX.begin]), to = Math.max(x(box[BOX.end]), from + .7);
    const low = boxY(panel, box[BOX.offset]), high = boxY(panel, box[BOX.offset] + box[BOX.bytes]);
    const dim = faded(box[BOX.tensor]), h = Math.max(low - high, .7);
    g.fillStyle = colours.kinds[box[BOX.kind]];
    g.globalAlpha = dim ? DIM : box[BOX.workspace] ? .5 : .92;
    const ready = box[BOX.kind] === PAGE_IN ? Math.min(Math.max(x(box[BOX.ready]), from), to) : from;
    g.fillRect(ready, high, to - ready, h);
    if (ready > from) { g.globalAlpha *= .45; g.fillRect(from, high, ready - from, h); }
    g.globalAlpha = dim ? 2 * DIM : 1;
    if (to - from > 4 && h > 4) {
      g.strokeStyle = colours.card;
      g.lineWidth = .8;
      g.strokeRect(from, high, to - from, h);
    }
    if (h > 11) label(g, data.tensors[box[BOX.tensor]][T.name], from, to, (low + high) / 2);
    g.globalAlpha = 1;
    const mine = chosen && chosen.tensor === box[BOX.tensor], hit = hits && hits.has(box[BOX.tensor]);
    if (mine || hit || hovered === box) {
      g.strokeStyle = mine || hovered === box ? colours.focus : colours.ink;
      g.lineWidth = 2;
      g.strokeRect(from - 1, high - 1, to - from + 2, h + 2);
    }
  }
  g.globalAlpha = 1;
  if (limit <= height) {
    g.strokeStyle = colours.limit;
    g.lineWidth = 1.3;
    g.setLineDash([6, 4]);
    g.beginPath();
    g.moveTo(LEFT, boxY(panel, limit));
    g.lineTo(width - RIGHT, boxY(panel, limit));
    g.stroke();
    g.setLineDash([]);
  }
  drawPeak(g, panel);
}
function drawPeak(g, panel) {
  const px = x(panel.view.peak_us), py = boxY(panel, panel.view.peak_bytes);
  g.fillStyle = colours.ink;
  g.beginPath();
  g.moveTo(px, py - 1);
  g.lineTo(px - 5, py - 9);
  g.lineTo(px + 5, py - 9);
  g.fill();
}
function drawLabels(g, panel) {
  const {view, top: upper} = panel, several = data.views.length > 1;
  g.textAlign = "right";
  g.fillStyle = colours.quiet;
  g.fillText("processor", LEFT - 10, panel.lanes + LANE / 2);
  g.fillText("transfers", LEFT - 10, panel.lanes + LANE * 1.5 + 2);
  if (several) {
    g.save();
    g.font = "600 11px system-ui, sans-serif";
    g.fillStyle = colours.ink;
    for (const [from, size] of [[panel.lanes, 2 * LANE], [upper, MEMORY]]) {
      g.save();
      g.translate(12, from + size / 2);
      g.rotate(-Math.PI / 2);
      g.textAlign = "center";
      g.fillText(view.name, 0, 0);
      g.restore();
    }
    g.restore();
  }
  const [unit, word] = height > 4e6 ? [1048576, "MiB"] : height > 8192 ? [1024, "KiB"] : [1, "bytes"];
  const every = step(height / unit, 6) * unit;
  g.fillStyle = colours.quiet;
  for (let b = 0; b <= height; b += every) {
    const last = b + every > height;
    g.fillText(number(b / unit, every < unit ? 1 : 0) + (last ? ` ${word}` : ""), LEFT - 10, boxY(panel, b));
  }
  const words = `peak ${bytes(view.peak_bytes)} at ${time(view.peak_us / view.scale)}`;
  const budget = limit <= height ? `budget ${bytes(limit)}` : `budget ${bytes(limit)}, far above`;
  const y = limit <= height ? boxY(panel, Math.max(limit, view.peak_bytes)) - 9 : upper + 8;
  const px = x(view.peak_us), room = g.measureText(words).width, seen = px >= LEFT && px <= width - RIGHT;
  g.fillStyle = colours.limit;
  g.textAlign = "right";
  const crowded = seen && px + 12 + room > width - RIGHT - g.measureText(budget).width - 12;
  const left = LEFT + g.measureText(budget).width + 6, flipped = px + 12 + room > width - RIGHT;
  // Where both have no place, as on a telephone, the budget stands in the totals alone.
  if (!crowded || left + 12 < (flipped ? px - 9 - room : px - 6)) g.fillText(budget, crowded ? left : width - RIGHT - 4, y);
  if (seen) {
    g.fillStyle = colours.ink;
    g.textAlign = flipped ? "right" : "left";
    g.fillText(words, flipped ? Math.max(px - 9, LEFT + room) : px + 9, y);
  }
}
function drawOverview() {
  const g = overview.getContext("2d"), w = inner(), h = 46, most = Math.max(height, 1);
  g.clearRect(0, 0, width, h);
  const px = t => LEFT + t / end * w, py = b => h - 3 - b / most * (h - 8);
  data.views.forEach((view, i) => {
    g.beginPath();
    g.moveTo(px(0), py(0));
    let last = 0;
    for (const [t, b] of view.used) { g.lineTo(px(t), py(last)); g.lineTo(px(t), py(b)); last = b; }
    g.lineTo(px(view.end_us), py(0));
    if (i === 0) { g.fillStyle = colours.kinds[FORWARD]; g.globalAlpha = .45; g.fill(); }
    else { g.strokeStyle = colours.ink; g.globalAlpha = .8; g.lineWidth = 1; g.stroke(); }
    g.globalAlpha = 1;
  });
  g.fillStyle = colours.quiet;
  g.textAlign = "right";
  g.textBaseline = "middle";
  g.font = "11px system-ui, sans-serif";
  g.fillText("RAM in use", LEFT - 10, h / 2);
  g.globalAlpha = .6;
  g.fillStyle = colours.card;
  g.fillRect(LEFT, 0, px(at.t0) - LEFT, h);
  g.fillRect(px(at.t1), 0, width - RIGHT - px(at.t1), h);
  g.globalAlpha = 1;
  g.strokeStyle = colours.focus;
  g.lineWidth = 1.5;
  g.strokeRect(px(at.t0) + .75, .75, Math.max(px(at.t1) - px(at.t0) - 1.5, 2), h - 2);
}

// Moving in time.

function show(t0, t1) {
  const span = Math.min(Math.max(t1 - t0, end / 1e5), end);
  at.t0 = Math.min(Math.max(t0, 0), end - span);
  at.t1 = at.t0 + span;
  redraw();
}
function zoom(factor, around = (at.t0 + at.t1) / 2) {
  show(around - (around - at.t0) * factor, around + (at.t1 - around) * factor);
}
const pan = part => show(at.t0 + part * (at.t1 - at.t0), at.t1 + part * (at.t1 - at.t0));
function reveal(begin, finish) {
  const span = at.t1 - at.t0;
  if (begin >= at.t0 && finish <= at.t1) return redraw();
  const room = Math.max(span, (finish - begin) * 1.2), middle = (begin + finish) / 2;
  show(middle - room / 2, middle + room / 2);
}

// What is under the pointer.

function found(px, py) {
  if (px < LEFT || px > width - RIGHT) return null;
  const t = us(px), near = 1.5 / inner() * (at.t1 - at.t0);
  for (const panel of panels) {
    const {view} = panel;
    for (const lane of [0, 1]) {
      const y = panel.lanes + lane * (LANE + 2);
      if (py < y || py > y + LANE - 2) continue;
      const bars = view.bars.filter(bar => laneOf(bar[BAR.kind]) === lane && bar[BAR.begin] - near <= t && t <= bar[BAR.end] + near);
      const bar = nearest(bars, t, BAR);
      if (bar) return {panel, bar, statement: bar[BAR.statement], tensor: bar[BAR.tensor], t};
    }
    if (py < panel.top || py > panel.top + MEMORY) continue;
    const b = (1 - (py - panel.top) / MEMORY) * height, thin = 1.5 / MEMORY * height;
    const boxes = view.boxes.filter(box => box[BOX.begin] - near <= t && t <= box[BOX.end] + near &&
      box[BOX.offset] - thin <= b && b <= box[BOX.offset] + box[BOX.bytes] + thin);
    const box = nearest(boxes, t, BOX, b);
    return {panel, box, statement: box?.[BOX.statement], tensor: box ? box[BOX.tensor] : -1, t};
  }
  return null;
}
function nearest(list, t, F, b) {
  const out = (value, low, high) => Math.max(low - value, value - high, 0);
  const far = one => out(t, one[F.begin], one[F.end]) / end + (b == null ? 0 : out(b, one[F.offset], one[F.offset] + one[F.bytes]) / height);
  return list.reduce((best, one) => best && far(best) <= far(one) ? best : one, null);
}
function inUse(view, t) {
  let low = 0, high = view.used.length;
  while (low + 1 < high) {
    const middle = (low + high) >> 1;
    if (view.used[middle][0] <= t) low = middle; else high = middle;
  }
  return view.used[low][1];
}
function about(spot) {
  const {bar, box, panel} = spot, {scale} = panel.view, made = el("div", {class: "about"}), list = el("dl");
  const fact = (name, value) => value && list.append(el("dt", {}, name), el("dd", {}, value));
  const tensor = spot.tensor >= 0 ? data.tensors[spot.tensor] : null;
  const one = bar || box, F = bar ? BAR : BOX, kind = one?.[F.kind];
  const title = !one ? "free" : kind === COMMIT ? data.kinds[COMMIT] : kind === WAIT && !tensor ? data.kinds[WAIT]
    : (box && box[BOX.workspace] ? "workspace of " : "") + tensor[T.name];
  made.append(el("h3", {}, title));
  if (one) {
    const word = data.views.length > 1 ? `${data.kinds[kind]}, ${panel.view.name}` : data.kinds[kind];
    fact("what", kind === WAIT && tensor ? `${word}, before ${data.rows[one[F.statement]][ROW.statement]}` : word);
    fact("operator", tensor?.[T.what]);
    if (tensor) fact("bytes", number(box ? box[BOX.bytes] : tensor[T.bytes]));
    if (box) fact("place", `${number(box[BOX.offset])} to ${number(box[BOX.offset] + box[BOX.bytes])}`);
    const row = data.rows[one[F.statement]];
    if (row) fact("statement", `${one[F.statement]}: ${row[ROW.statement]}`);
    fact(box ? "in RAM" : "busy", [one[F.begin], one[F.end]].map(t => time(t / scale)).join(" to ") + `, ${time((one[F.end] - one[F.begin]) / scale)}`);
    if (box && kind === PAGE_IN && box[BOX.ready] > box[BOX.begin]) fact("arrived", time(box[BOX.ready] / scale));
    if (tensor && kind !== WAIT) {
      const [energy, spent] = kind === PAGE_IN ? [T.inUj, T.inUs] : kind === PAGE_OUT ? [T.outUj, T.outUs] : [T.uj, T.us];
      fact("costs", `${uj(tensor[energy])}, ${time(tensor[spent])} in the plan` +
        (row?.[ROW.took] != null ? `; ${time(row[ROW.took])} measured` : ""));
      fact("in a step", counts(tensor));
    }
  }
  if (spot.t != null) fact("then", `${bytes(inUse(panel.view, spot.t))} in use at ${time(spot.t / scale)}`);
  made.append(list);
  if (tensor) {
    const mine = data.away.filter(away => away.node === spot.tensor);
    const here = mine.filter(away => away.back === one[F.statement]);
    for (const away of (here.length ? here : mine).slice(0, 2)) made.append(el("p", {}, why(away)));
    if (!here.length && mine.length > 2) made.append(el("p", {class: "quiet"}, `It leaves and comes back ${mine.length} times.`));
  }
  return made;
}
function counts(tensor) {
  const words = [[T.computed, "computed"], [T.ins, "paged in"], [T.outs, "paged out"]];
  return words.filter(([at]) => tensor[at]).map(([at, word]) => `${word} ${["", "once", "twice"][tensor[at]] ?? `${tensor[at]} times`}`).join(", ");
}
function point(event) {
  const rect = chart.getBoundingClientRect(), px = event.clientX - rect.left, py = event.clientY - rect.top;
  const spot = found(px, py);
  if (hovered !== (spot?.box ?? null)) { hovered = spot?.box ?? null; redraw(); }
  tip.hidden = !spot;
  if (!spot) return;
  tip.replaceChildren(about(spot));
  const right = event.clientX + 18, below = event.clientY + 14, w = tip.offsetWidth, h = tip.offsetHeight;
  tip.style.left = `${right + w < innerWidth - 8 ? right : Math.max(4, event.clientX - w - 14)}px`;
  tip.style.top = `${Math.max(4, Math.min(below, innerHeight - h - 8))}px`;
}
function leave() {
  tip.hidden = true;
  if (hovered) { hovered = null; redraw(); }
}

// A chosen statement: kept in the chart, told below it, marked in the tables.

function choose(statement, scroll = true) {
  document.querySelectorAll("tr.chosen").forEach(row => row.classList.remove("chosen"));
  const row = data.rows[statement];
  if (!row) { chosen = null; $("detail").hidden = true; return redraw(); }
  chosen = {statement, tensor: row[ROW.tensor]};
  const spot = spotOf(statement);
  $("detail").hidden = false;
  $("detail").replaceChildren(spot ? about(spot) : plain(statement));
  for (const line of document.querySelectorAll(`tr[data-statement="${statement}"]`)) {
    line.classList.add("chosen");
    if (scroll) inside(line);
  }
  if (spot) { const F = spot.box ? BOX : BAR, one = spot.box || spot.bar; reveal(one[F.begin], one[F.end]); } else redraw();
}
function inside(line) {
  const box = line.closest(".scroll"), seen = box.getBoundingClientRect(), mine = line.getBoundingClientRect();
  if (mine.top < seen.top + 40 || mine.bottom > seen.bottom) box.scrollTop += mine.top - seen.top - box.clientHeight / 3;
}
function spotOf(statement) {
  for (const panel of panels) {
    const box = panel.view.boxes.find(one => one[BOX.statement] === statement && !one[BOX.workspace]);
    const bar = box ? null : panel.view.bars.find(one => one[BAR.statement] === statement);
    if (box || bar) return {panel, box, bar, statement, tensor: (box || bar)[1]};
  }
  return null;
}
function plain(statement) {
  const row = data.rows[statement], tensor = data.tensors[row[ROW.tensor]];
  return el("div", {class: "about"}, el("h3", {}, `${row[ROW.statement]} ${tensor ? tensor[T.name] : ""}`),
    el("p", {}, `statement ${statement}${row[ROW.what] ? `: ${row[ROW.what]}` : ""}`));
}

// Tables.

function table(columns, rows, sortable = false) {
  const heads = columns.map(([name, kind], i) => {
    const head = el("th", {scope: "col", class: kind});
    if (!sortable) { head.append(name); return head; }
    head.setAttribute("aria-sort", "none");
    const button = el("button", {}, name);
    button.addEventListener("click", () => sort(head, i));
    head.append(button);
    return head;
  });
  return el("table", {}, el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...rows));
}
function sort(head, column) {
  const down = head.getAttribute("aria-sort") === "descending", body = head.closest("table").tBodies[0];
  head.parentNode.querySelectorAll("th").forEach(one => one.setAttribute("aria-sort", "none"));
  head.setAttribute("aria-sort", down ? "ascending" : "descending");
  const key = row => row.cells[column].dataset.value ?? row.cells[column].textContent;
  const order = (a, b) => isNaN(key(a)) || isNaN(key(b)) ? key(b).localeCompare(key(a)) : key(b) - key(a);
  body.append(...[...body.rows].sort((a, b) => down ? order(b, a) : order(a, b)));
}
const cell = (text, kind = "", value = null) => el("td", {class: kind, ...(value == null ? {} : {"data-value": value})}, text);
const KINDS = {"compute": FORWARD, "compute again": AGAIN, "page in": PAGE_IN, "page out": PAGE_OUT, "wait": WAIT};

const WIDEST = 48;  // characters of a tensor's name in a table
function listing() {
  const ran = data.run != null;
  const columns = [["#", "n"], [`begins ${planned.name}`, "n"], [`takes ${planned.name}`, "n"], ...(ran ? [[`took ${measured.name}`, "n"]] : []),
    ["statement", ""], ["tensor", ""], ["bytes", "n"], ["at", "n"], ["RAM used", "n"], ["what", ""]];
  const texts = data.rows.map((row, i) => {
    const tensor = data.tensors[row[ROW.tensor]];
    return [String(i), planned.text(row[ROW.begin]), planned.text(row[ROW.takes]), ...(ran ? [measured.text(row[ROW.took])] : []), row[ROW.statement],
      tensor ? tensor[T.name] : "", tensor ? number(tensor[T.bytes]) : "", number(row[ROW.offset]), number(row[ROW.ram]), row[ROW.what]];
  });
  const name = columns.findIndex(([word]) => word === "tensor");
  const lines = texts.map((words, i) => {
    const kind = KINDS[data.rows[i][ROW.statement]];
    const cells = words.map((word, column) => cell(word, column === name ? "name" : column === name - 1 ? "k" : columns[column][1]));
    if (words[name].length > WIDEST) cells[name].title = words[name];
    if (kind != null) cells[name - 1].style.setProperty("--c", `var(--k${kind})`);
    return el("tr", {"data-statement": i, "data-tensor": data.rows[i][ROW.tensor]}, ...cells);
  });
  // Tables of some rows each, with columns of one width: the browser lays out those that are seen.
  const widths = columns.map(([word], column) => texts.reduce((most, words) => Math.max(most, words[column].length), word.length));
  widths[name] = Math.min(widths[name], WIDEST);
  const sizes = () => el("colgroup", {}, ...widths.map(count => el("col", {style: `width: calc(${count}ch + 26px)`})));
  const head = table(columns, []);
  head.prepend(sizes());
  const sum = widths.reduce((total, count) => total + count, 0);
  const all = el("div", {style: `min-width: calc(${sum}ch + ${26 * widths.length}px)`, class: "all"}, el("div", {class: "head"}, head));
  for (let i = 0; i < lines.length; i += 100) {
    const some = lines.slice(i, i + 100);
    all.append(el("div", {class: "block", style: `--rows: ${some.length}`}, el("table", {}, sizes(), el("tbody", {}, ...some))));
  }
  $("listing").append(all);
}
function reasons() {
  const section = $("why"), {plan, keep} = data;
  section.append(el("h2", {}, "What was recomputed and paged, and why it paid"));
  if (!data.away.length) {
    section.append(el("p", {class: "quiet"}, "Nothing leaves RAM that is needed again: this plan keeps everything."));
    return;
  }
  const again = data.away.filter(one => one.how === AGAIN), paged = data.away.filter(one => one.how === PAGE_IN);
  const extra = sum(data.away);
  section.append(el("p", {},
    `Coming back costs ${uj(extra)} in all${plan.energy_uj ? `, ${share(extra / plan.energy_uj)} of the step` : ""}: ${uj(sum(again))} to compute ${again.length} tensors again, ` +
    `${uj(sum(paged))} to page ${paged.length}. ` +
    (keep?.peak_bytes ? `For that, ${bytes(plan.peak_bytes ?? data.views[0].peak_bytes)} of RAM do in place of ${number(keep.peak_bytes)}.` : "")));
  section.append(el("p", {class: "quiet"},
    "The other way: what paging it out and in, or computing it again, would have cost by the same profile. " +
    "Inputs that came back for its sake have rows of their own. RAM had it stayed, and how much over the budget that is: the most bytes in use while it was away, its own included, all other statements the same; a sum, which placement can only raise."));
  const columns = [["tensor", ""], ["bytes", "n"], [`left ${planned.name}`, "n"], [`away ${planned.name}`, "n"], [`KiB × ${planned.long} freed`, "n"], ["came back", ""],
    ["costs µJ", "n"], [planned.name, "n"], ["other way µJ", "n"], [planned.name, "n"], ["RAM had it stayed", "n"], ["over", "n"]];
  const rows = data.away.map(away => {
    const [us, energy] = away.spent, gone = away.back_us - away.left_us, over = away.without_bytes - plan.ram_bytes;
    const freed = away.size_bytes / 1024 * gone / (planned.long === "s" ? 1e6 : 1e3);
    const back = cell(data.kinds[away.how], "k");
    back.style.setProperty("--c", `var(--k${away.how})`);
    const other = away.instead
      ? [cell(number(away.instead[1], 1) + (away.missing.length && away.how === PAGE_IN ? " +" : ""), "n", away.instead[1]), cell(planned.text(away.instead[0]), "n", away.instead[0])]
      : [cell("cannot", "n", 0), cell("", "n", 0)];
    const line = el("tr", {"data-statement": away.back, "data-tensor": away.node, title: why(away)},
      cell(data.tensors[away.node][T.name], "name"), cell(number(away.size_bytes), "n", away.size_bytes),
      cell(planned.text(away.left_us), "n", away.left_us), cell(planned.text(gone), "n", gone), cell(number(freed, freed < 1 ? 3 : 1), "n", freed),
      back, cell(number(energy, 1), "n", energy), cell(planned.text(us), "n", us), ...other,
      cell(number(away.without_bytes), "n", away.without_bytes), cell(over > 0 ? `+${number(over)}` : away.place_taken ? "place taken" : "fits", "n", over));
    return line;
  });
  section.append(el("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "What was recomputed and paged"}, table(columns, rows, true)));
  if (data.away.some(away => away.missing.length && away.instead && away.how === PAGE_IN))
    section.append(el("p", {class: "quiet"}, "+ and what computing its inputs would have cost, which were not in RAM."));
}
function recorded() {
  const {run} = data;
  if (!run) return;
  $("beside").hidden = false;
  const error = (mine, real) => mine != null && real && same ? signed(mine / real - 1) : "";
  const line = (what, count, mine, real) => el("tr", {}, cell(what), cell(count, "n", count), cell(planned.text(mine), "n", mine ?? 0),
    cell(measured.text(real), "n", real), cell(error(mine, real), "n", mine != null && real && same ? mine / real - 1 : 0));
  const rows = run.beside.map(([what, count, mine, real]) => line(what, number(count), mine, real));
  const head = el("h2", {}, "Predicted and measured");
  const text = `Of one step, on ${run.board}: each statement's time is the median over the steps that traced it. ` +
    "A prediction contains what passes between statements, the trace of an operator does not: that has a row of its own. " +
    "The measured lanes above are the latest step that was traced" +
    (same ? "." : `, stretched to the plan's length: the plan is for ${data.board}, and the run was on another board.`);
  const body = table([["kind of work", ""], ["times", "n"], [`predicted ${planned.name}`, "n"], [`measured ${measured.name}`, "n"], ["error", "n"]], rows, true);
  if (run.step_us != null) body.append(el("tfoot", {}, line("a step without commit and answers to the host", "", promised, run.step_us)));
  $("beside").append(head, el("p", {class: "quiet"}, text), el("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "Predicted and measured"}, body));
  if (run.steps.length) learning(run);
}
function learning({steps, data: set, batch, ended}) {
  const box = $("learning"), W = 900, H = 220, L = 60, B = 30;
  box.hidden = false;
  const losses = steps.map(one => one[1]);
  // One by one, as Math.max cannot take a hundred thousand at once.
  const most = losses.reduce((a, b) => Math.max(a, b)), least = losses.reduce((a, b) => Math.min(a, b), 0);
  const px = i => L + (steps.length > 1 ? i / (steps.length - 1) : .5) * (W - L - 12), py = v => 12 + (1 - (v - least) / (most - least || 1)) * (H - B - 12);
  const svg = $("curve");
  svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
  svg.setAttribute("aria-label", `Loss from ${number(losses[0], 4)} to ${number(losses.at(-1), 4)}`);
  const add = (tag, attributes, text) => {
    const made = document.createElementNS(svg.namespaceURI, tag);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text != null) made.textContent = text;
    svg.append(made);
  };
  for (const part of [0, .5, 1]) {
    const v = least + part * (most - least);
    add("line", {x1: L, x2: W - 12, y1: py(v), y2: py(v), stroke: "var(--rule)"});
    add("text", {x: L - 8, y: py(v) + 4, "text-anchor": "end"}, number(v, 3));
  }
  add("polyline", {points: losses.map((v, i) => `${px(i).toFixed(1)},${py(v).toFixed(1)}`).join(" "), fill: "none", stroke: "var(--k0)", "stroke-width": 1.8});
  if (steps.length === 1) add("circle", {cx: px(0), cy: py(losses[0]), r: 3, fill: "var(--k0)"});
  add("text", {x: L, y: H - 8}, `step ${steps[0][0]}`);
  add("text", {x: W - 12, y: H - 8, "text-anchor": "end"}, `step ${steps.at(-1)[0]}`);
  const word = ended === "done" ? "" : `; it ended as ${ended.replace("_", " ")}`;
  box.prepend(el("h2", {}, "Loss"), el("p", {class: "quiet"}, `${counted(steps.length, "step")} of ${counted(batch, "sample")} of ${set}: ${number(losses[0], 4)} at first, ${number(losses.at(-1), 4)} at last${word}.`));
}

// Search.

function search(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  hits = null;
  leave();
  if (words.length) {
    hits = new Set();
    data.tensors.forEach((tensor, i) => {
      const where = `${tensor[T.name]} ${String(tensor[T.what]).split(/[ (]/)[0]}`.toLowerCase();
      if (words.every(word => where.includes(word))) hits.add(i);
    });
  }
  $("count").textContent = hits ? counted(hits.size, "tensor") : "";
  for (const row of document.querySelectorAll("tr[data-tensor]")) {
    const hit = hits && hits.has(Number(row.dataset.tensor));
    row.classList.toggle("hit", Boolean(hit));
    row.classList.toggle("dim", Boolean(hits) && !hit);
  }
  redraw();
}
function next(direction) {
  const count = data.rows.length, from = chosen ? chosen.statement : direction > 0 ? -1 : count;
  for (let i = from + direction; i >= 0 && i < count; i += direction)
    if (!hits || hits.has(data.rows[i][ROW.tensor])) return choose(i);
}

// Keys, pointer, wheel.

function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const acts = {
    ArrowLeft: () => pan(-.2), ArrowRight: () => pan(.2), ArrowUp: () => next(-1), ArrowDown: () => next(1),
    "+": () => zoom(.5), "=": () => zoom(.5), "-": () => zoom(2), "0": () => show(0, end),
    Home: () => pan(-1e9), End: () => pan(1e9), Escape: () => { choose(-1); leave(); },
  };
  if (!acts[event.key]) return;
  event.preventDefault();
  acts[event.key]();
}
function listen() {
  let drag = null;
  chart.addEventListener("pointerdown", event => {
    if (event.button) return;
    drag = {x: event.clientX, t0: at.t0, t1: at.t1, moved: false};
    chart.setPointerCapture(event.pointerId);
  });
  chart.addEventListener("pointermove", event => {
    if (!drag) return point(event);
    const by = (drag.x - event.clientX) / inner() * (drag.t1 - drag.t0);
    if (Math.abs(drag.x - event.clientX) > 3) drag.moved = true;
    if (!drag.moved) return;
    chart.classList.add("drag");
    leave();
    show(drag.t0 + by, drag.t1 + by);
  });
  const release = event => {
    if (drag && !drag.moved && event.type === "pointerup") {
      const rect = chart.getBoundingClientRect();
      choose(found(event.clientX - rect.left, event.clientY - rect.top)?.statement ?? -1);
    }
    drag = null;
    chart.classList.remove("drag");
  };
  chart.addEventListener("pointerup", release);
  chart.addEventListener("pointercancel", release);
  chart.addEventListener("pointerleave", leave);
  chart.addEventListener("dblclick", event => zoom(.4, us(event.clientX - chart.getBoundingClientRect().left)));
  chart.addEventListener("wheel", event => {
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) / 150), us(event.clientX - chart.getBoundingClientRect().left));
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(sideways / inner());
    else return;
    event.preventDefault();
    leave();
  }, {passive: false});
  const centre = event => {
    if (!(event.buttons & 1)) return;
    const t = (event.clientX - overview.getBoundingClientRect().left - LEFT) / inner() * end, half = (at.t1 - at.t0) / 2;
    show(t - half, t + half);
  };
  overview.addEventListener("pointerdown", event => { overview.setPointerCapture(event.pointerId); centre(event); });
  overview.addEventListener("pointermove", centre);
  chart.addEventListener("keydown", key);
  $("listing").addEventListener("keydown", event => event.key.startsWith("Arrow") && key(event));
  document.addEventListener("keydown", event => {
    if (event.key === "/" && document.activeElement !== $("search")) { event.preventDefault(); $("search").focus(); }
  });
  $("search").addEventListener("input", event => search(event.target.value));
  $("search").addEventListener("keydown", event => {
    if (event.key === "Enter") { event.preventDefault(); next(event.shiftKey ? -1 : 1); }
    if (event.key === "Escape") { event.target.value = ""; search(""); choose(-1); }
  });
  addEventListener("scroll", leave, {passive: true});
  $("in").addEventListener("click", () => zoom(.5));
  $("out").addEventListener("click", () => zoom(2));
  $("all").addEventListener("click", () => show(0, end));
  document.querySelector("main").addEventListener("click", event => {
    const row = event.target.closest("tr[data-statement]");
    if (row) choose(Number(row.dataset.statement), false);
  });
  new ResizeObserver(() => chart.clientWidth !== width && layout()).observe($("frame"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", layout);
}

totals();
reasons();
recorded();
listing();
listen();
layout();
// For those who look in from outside: what is drawn where, in pixels of the window.
window.poet = {
  data, at, show, search, choose, draw,
  panel(i) {
    const rect = chart.getBoundingClientRect(), panel = panels[i];
    return {left: rect.left + LEFT, width: inner(), top: rect.top + panel.top, height: MEMORY, bytes: height, processor: rect.top + panel.lanes, transfers: rect.top + panel.lanes + LANE + 2, lane: LANE - 2};
  },
};
})();
