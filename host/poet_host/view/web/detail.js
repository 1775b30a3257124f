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
