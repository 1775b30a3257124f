// Search, keys, pointer and wheel; then the page starts.

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

function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const acts = {
    ArrowLeft: () => pan(-.2), ArrowRight: () => pan(.2),
    ArrowUp: () => next(-1), ArrowDown: () => next(1),
    "+": () => zoom(.5), "=": () => zoom(.5), "-": () => zoom(2), "0": () => show(0, end),
    Home: () => pan(-1e9), End: () => pan(1e9), Escape: () => { choose(-1); leave(); },
  };
  if (!acts[event.key]) return;
  event.preventDefault();
  acts[event.key]();
}
const chartX = event => event.clientX - chart.getBoundingClientRect().left;

function listen() {
  listenToChart();
  listenToOverview();
  chart.addEventListener("keydown", key);
  $("listing").addEventListener("keydown", event => event.key.startsWith("Arrow") && key(event));
  document.addEventListener("keydown", event => {
    if (event.key !== "/" || document.activeElement === $("search")) return;
    event.preventDefault();
    $("search").focus();
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
function listenToChart() {
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
  chart.addEventListener("dblclick", event => zoom(.4, us(chartX(event))));
  chart.addEventListener("wheel", event => {
    const turns = Math.max(-60, Math.min(60, event.deltaY)) / 150;
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(turns), us(chartX(event)));
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))
      pan(sideways / inner());
    else return;
    event.preventDefault();
    leave();
  }, {passive: false});
}
function listenToOverview() {
  const centre = event => {
    if (!(event.buttons & 1)) return;
    const px = event.clientX - overview.getBoundingClientRect().left - LEFT;
    const t = px / inner() * end, half = (at.t1 - at.t0) / 2;
    show(t - half, t + half);
  };
  overview.addEventListener("pointerdown", event => {
    overview.setPointerCapture(event.pointerId);
    centre(event);
  });
  overview.addEventListener("pointermove", centre);
}

totals();
reasons();
recorded();
listing();
listen();
layout();
// For tests and the console: where things are drawn, in pixels of the window.
window.poet = {
  data, at, show, search, choose, draw,
  panel(i) {
    const rect = chart.getBoundingClientRect(), panel = panels[i];
    const lanes = rect.top + panel.lanes;
    return {
      left: rect.left + LEFT, width: inner(), top: rect.top + panel.top, height: MEMORY,
      bytes: height, processor: lanes, transfers: lanes + LANE + 2, lane: LANE - 2,
    };
  },
};
