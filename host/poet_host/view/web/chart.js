// Drawing: axis, bars, boxes of the arena, labels, overview.

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
    const left = Math.min(Math.max(x(t), LEFT + 12), width - 24);
    g.fillText(number(t / unit, digits) + (t === 0 ? ` ${word}` : ""), left, 11);
  }
  g.textAlign = "right";
  g.fillText(`time, ${word}`, LEFT - 10, 11);
}
function faded(tensor) {
  if (hits) return !hits.has(tensor);
  return chosen != null && chosen.tensor >= 0 && chosen.tensor !== tensor;
}
function drawBars(g, panel) {
  const drawn = new Map();  // last pixel of each colour: bars that end before it are skipped
  for (const bar of panel.view.bars) {
    if (bar[BAR.end] < at.t0 || bar[BAR.begin] > at.t1) continue;
    const kind = bar[BAR.kind], from = x(bar[BAR.begin]), to = Math.max(x(bar[BAR.end]), from + 1);
    const dim = faded(bar[BAR.tensor]), key = `${kind}${dim}`, y = barTop(panel, kind);
    if (to <= (drawn.get(key) ?? -1)) continue;
    drawn.set(key, to);
    g.globalAlpha = dim ? DIM : kind === WAIT ? .55 : 1;
    g.fillStyle = colours.kinds[kind];
    g.fillRect(from, y, to - from, LANE - 2);
    g.globalAlpha = dim ? 2 * DIM : 1;
    if (to - from > 3 && !dim) {
      g.fillStyle = colours.paper;
      g.fillRect(to - .6, y, .6, LANE - 2);
    }
    if (bar[BAR.tensor] >= 0 && kind !== WAIT)
      label(g, data.tensors[bar[BAR.tensor]][T.name], from, to, y + LANE / 2 - 1);
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
    const ready = box[BOX.kind] === PAGE_IN
      ? Math.min(Math.max(x(box[BOX.ready]), from), to) : from;
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
    const mine = chosen && chosen.tensor === box[BOX.tensor];
    const hit = hits && hits.has(box[BOX.tensor]);
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
  drawFullest(g, panel);
}
function drawFullest(g, panel) {
  const px = x(panel.view.fullest_us), py = boxY(panel, panel.view.height_bytes);
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
  const [unit, word] =
    height > 4e6 ? [1048576, "MiB"] : height > 8192 ? [1024, "KiB"] : [1, "bytes"];
  const every = step(height / unit, 6) * unit;
  g.fillStyle = colours.quiet;
  for (let b = 0; b <= height; b += every) {
    const last = b + every > height;
    const text = number(b / unit, every < unit ? 1 : 0) + (last ? ` ${word}` : "");
    g.fillText(text, LEFT - 10, boxY(panel, b));
  }
  const words = `fullest at ${time(view.fullest_us / view.scale)}: ` +
    `${bytes(view.fullest_bytes)} in use`;
  const budget = limit <= height ? `budget ${bytes(limit)}` : `budget ${bytes(limit)}, far above`;
  const y = limit <= height ? boxY(panel, Math.max(limit, view.height_bytes)) - 9 : upper + 8;
  const px = x(view.fullest_us), room = g.measureText(words).width;
  const seen = px >= LEFT && px <= width - RIGHT;
  g.fillStyle = colours.limit;
  g.textAlign = "right";
  const crowded = seen && px + 12 + room > width - RIGHT - g.measureText(budget).width - 12;
  const left = LEFT + g.measureText(budget).width + 6, flipped = px + 12 + room > width - RIGHT;
  // On a narrow screen without room for both, only the totals show the budget.
  if (!crowded || left + 12 < (flipped ? px - 9 - room : px - 6))
    g.fillText(budget, crowded ? left : width - RIGHT - 4, y);
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
