// The item under the pointer, the chosen statement, and the facts shown about them.

function found(px, py) {
  if (px < LEFT || px > width - RIGHT) return null;
  const t = us(px), near = 1.5 / inner() * (at.t1 - at.t0);
  const now = (row, F) => row[F.begin] - near <= t && t <= row[F.end] + near;
  for (const panel of panels) {
    const {view} = panel;
    for (const lane of [0, 1]) {
      const y = panel.lanes + lane * (LANE + 2);
      if (py < y || py > y + LANE - 2) continue;
      const bars = view.bars.filter(bar => laneOf(bar[BAR.kind]) === lane && now(bar, BAR));
      const bar = nearest(bars, t, BAR);
      if (bar) return {panel, bar, statement: bar[BAR.statement], tensor: bar[BAR.tensor], t};
    }
    if (py < panel.top || py > panel.top + MEMORY) continue;
    const b = (1 - (py - panel.top) / MEMORY) * height, thin = 1.5 / MEMORY * height;
    const boxes = view.boxes.filter(box => now(box, BOX) &&
      box[BOX.offset] - thin <= b && b <= box[BOX.offset] + box[BOX.bytes] + thin);
    const box = nearest(boxes, t, BOX, b);
    return {panel, box, statement: box?.[BOX.statement], tensor: box ? box[BOX.tensor] : -1, t};
  }
  return null;
}
// The row that is nearest to a time and, in the arena, to a byte. F: the row's columns.
function nearest(rows, t, F, b) {
  const out = (value, low, high) => Math.max(low - value, value - high, 0);
  const far = row => out(t, row[F.begin], row[F.end]) / end +
    (b == null ? 0 : out(b, row[F.offset], row[F.offset] + row[F.bytes]) / height);
  return rows.reduce((best, row) => best && far(best) <= far(row) ? best : row, null);
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
  const {panel} = spot, made = el("div", {class: "about"}), list = el("dl");
  const tensor = spot.tensor >= 0 ? data.tensors[spot.tensor] : null;
  const fact = (name, value) => value && list.append(el("dt", {}, name), el("dd", {}, value));
  made.append(el("h3", {}, titleOf(spot, tensor)), list);
  if (spot.bar || spot.box) facts(fact, spot, tensor);
  if (spot.t != null) {
    const used = bytes(inUse(panel.view, spot.t));
    fact("then", `${used} in use at ${time(spot.t / panel.view.scale)}`);
  }
  if (tensor) {
    const mine = data.away.filter(away => away.node === spot.tensor);
    const here = mine.filter(away => away.back === spot.statement);
    for (const away of (here.length ? here : mine).slice(0, 2)) made.append(el("p", {}, why(away)));
    if (!here.length && mine.length > 2)
      made.append(quiet(`It leaves and comes back ${mine.length} times.`));
  }
  return made;
}
function titleOf({bar, box}, tensor) {
  if (!bar && !box) return "free";
  const kind = bar ? bar[BAR.kind] : box[BOX.kind];
  if (kind === COMMIT || (kind === WAIT && !tensor)) return data.kinds[kind];
  return (box && box[BOX.workspace] ? "workspace of " : "") + tensor[T.name];
}
function facts(fact, {bar, box, panel}, tensor) {
  const {view} = panel, F = bar ? BAR : BOX, shown = bar || box, kind = shown[F.kind];
  const row = data.rows[shown[F.statement]];
  const word = data.kinds[kind] + (data.views.length > 1 ? `, ${view.name}` : "");
  fact("what", kind === WAIT && tensor ? `${word}, before ${row[ROW.statement]}` : word);
  fact("operator", tensor?.[T.what]);
  if (tensor) fact("bytes", number(box ? box[BOX.bytes] : tensor[T.bytes]));
  if (box) {
    const last = box[BOX.offset] + box[BOX.bytes];
    fact("offset", `${number(box[BOX.offset])} to ${number(last)}`);
  }
  if (row) fact("statement", `${shown[F.statement]}: ${row[ROW.statement]}`);
  const [begin, finish] = [shown[F.begin] / view.scale, shown[F.end] / view.scale];
  fact(box ? "in RAM" : "busy", `${time(begin)} to ${time(finish)}, ${time(finish - begin)}`);
  if (box && kind === PAGE_IN && box[BOX.ready] > box[BOX.begin])
    fact("arrived", time(box[BOX.ready] / view.scale));
  if (tensor && kind !== WAIT) {
    const [energy, spent] = kind === PAGE_IN ? [T.inUj, T.inUs]
      : kind === PAGE_OUT ? [T.outUj, T.outUs] : [T.uj, T.us];
    fact("costs", `${uj(tensor[energy])}, ${time(tensor[spent])} in the plan` +
      (row?.[ROW.took] != null ? `; ${time(row[ROW.took])} measured` : ""));
    fact("in a step", counts(tensor));
  }
}
function counts(tensor) {
  const words = [[T.computed, "computed"], [T.ins, "paged in"], [T.outs, "paged out"]];
  const times = count => ["", "once", "twice"][count] ?? `${count} times`;
  return words.filter(([column]) => tensor[column])
    .map(([column, word]) => `${word} ${times(tensor[column])}`).join(", ");
}

function point(event) {
  const rect = chart.getBoundingClientRect();
  const spot = found(event.clientX - rect.left, event.clientY - rect.top);
  if (hovered !== (spot?.box ?? null)) { hovered = spot?.box ?? null; redraw(); }
  tip.hidden = !spot;
  if (!spot) return;
  tip.replaceChildren(about(spot));
  const right = event.clientX + 18, below = event.clientY + 14;
  const {offsetWidth: w, offsetHeight: h} = tip;
  tip.style.left = `${right + w < innerWidth - 8 ? right : Math.max(4, event.clientX - w - 14)}px`;
  tip.style.top = `${Math.max(4, Math.min(below, innerHeight - h - 8))}px`;
}
function leave() {
  tip.hidden = true;
  if (hovered) { hovered = null; redraw(); }
}

// A chosen statement: highlighted in the chart, described below it, marked in the tables.

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
    if (scroll) scrollToLine(line);
  }
  if (!spot) return redraw();
  if (spot.box) reveal(spot.box[BOX.begin], spot.box[BOX.end]);
  else reveal(spot.bar[BAR.begin], spot.bar[BAR.end]);
}
function scrollToLine(line) {
  const box = line.closest(".scroll");
  const seen = box.getBoundingClientRect(), mine = line.getBoundingClientRect();
  if (mine.top < seen.top + 40 || mine.bottom > seen.bottom)
    box.scrollTop += mine.top - seen.top - box.clientHeight / 3;
}
function spotOf(statement) {
  for (const panel of panels) {
    const {boxes, bars} = panel.view;
    const box = boxes.find(box => box[BOX.statement] === statement && !box[BOX.workspace]);
    const bar = box ? null : bars.find(bar => bar[BAR.statement] === statement);
    if (box) return {panel, box, statement, tensor: box[BOX.tensor]};
    if (bar) return {panel, bar, statement, tensor: bar[BAR.tensor]};
  }
  return null;
}
function plain(statement) {
  const row = data.rows[statement], tensor = data.tensors[row[ROW.tensor]];
  const title = `${row[ROW.statement]} ${tensor ? tensor[T.name] : ""}`;
  const text = `statement ${statement}${row[ROW.what] ? `: ${row[ROW.what]}` : ""}`;
  return el("div", {class: "about"}, el("h3", {}, title), el("p", {}, text));
}
