// The data of the page, and how numbers and elements are written.

const data = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
const [FORWARD, AGAIN, PAGE_IN, PAGE_OUT, WAIT, COMMIT, STREAMED] = data.kinds.keys();
// Columns of the rows of the data, as page.py writes them.
const T = {
  name: 0, what: 1, bytes: 2, computed: 3, ins: 4, outs: 5, uj: 6, us: 7,
  inUj: 8, inUs: 9, outUj: 10, outUs: 11,
};
const BAR = {statement: 0, tensor: 1, kind: 2, begin: 3, end: 4};
const BOX = {
  statement: 0, tensor: 1, kind: 2, offset: 3, bytes: 4, begin: 5, ready: 6, end: 7, workspace: 8,
};
const ROW = {statement: 0, tensor: 1, offset: 2, ram: 3, begin: 4, takes: 5, took: 6, what: 7};

// False if a run is shown that was on another board than the plan's.
const same = !data.run || data.run.board === data.board;

// Words and numbers.

const number = (value, digits = 0) => value == null ? "" :
  value.toLocaleString("en-US", {minimumFractionDigits: digits, maximumFractionDigits: digits});
const bytes = value => `${number(value)} bytes`;
// The unit of times in tables: microseconds on a fast board. A run on another board has its own
// unit.
const unit = us => us < data.short_us
  ? {name: "µs", long: "ms", text: us => us == null ? "" : number(us, 1)}
  : {name: "ms", long: "s", text: us => us == null ? "" : number(us / 1e3, 3)};
const planned = unit(data.views[0].end_us);
const measured = same ? planned : unit(data.run.step_us ?? 0);
const uj = value => value >= 1e6
  ? `${number(value / 1e6, 3)} J` : `${number(value, value && value < 10 ? 3 : 1)} µJ`;
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
const quiet = text => el("p", {class: "quiet"}, text);
function region(label, content) {
  return el("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": label}, content);
}
