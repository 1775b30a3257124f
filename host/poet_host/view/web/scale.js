// The chart. One time axis; lanes of every view, then the memory of every view.

const chart = $("chart"), overview = $("overview"), tip = $("tip");
// A run on another board is stretched to the length of the plan. Texts show the run's own times:
// t / view.scale.
for (const view of data.views) {
  view.scale = !same && view.end_us > 0 ? data.views[0].end_us / view.end_us : 1;
  if (view.scale === 1) continue;
  const timed = [
    [view.bars, [BAR.begin, BAR.end]], [view.boxes, [BOX.begin, BOX.ready, BOX.end]],
    [view.used, [0]],
  ];
  for (const [rows, columns] of timed)
    for (const row of rows) for (const column of columns) row[column] *= view.scale;
  view.end_us *= view.scale;
  view.fullest_us *= view.scale;
}
const end = Math.max(...data.views.map(view => view.end_us), 1e-3);
const top = Math.max(...data.views.map(view => view.height_bytes), 1);
const limit = data.plan.ram_bytes;
const height = (limit < 1.6 * top ? Math.max(limit, top) : top) * 1.09;
const LEFT = 92, RIGHT = 14, AXIS = 24, LANE = 24, GAP = 6;
const MEMORY = data.views.length > 1 ? 250 : 360;
const at = {t0: 0, t1: end};
let width = 0, colours = {}, panels = [];
let hits = null;  // tensors that the search found
let chosen = null, hovered = null;  // a statement with its tensor, a box
let wanted = false;  // true: a redraw is scheduled

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
const DIM = .2;  // opacity of tensors that are neither found nor chosen
const laneOf = kind => [PAGE_IN, PAGE_OUT, STREAMED].includes(kind) ? 1 : 0;
const barTop = (panel, kind) => panel.lanes + laneOf(kind) * (LANE + 2);
const boxY = (panel, offset) => panel.top + MEMORY * (1 - offset / height);

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
