// Tables: sorting by a column, and the listing of every statement.

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
  const down = head.getAttribute("aria-sort") === "descending";
  const body = head.closest("table").tBodies[0];
  head.parentNode.querySelectorAll("th").forEach(th => th.setAttribute("aria-sort", "none"));
  head.setAttribute("aria-sort", down ? "ascending" : "descending");
  const key = row => row.cells[column].dataset.value ?? row.cells[column].textContent;
  const order = (a, b) => isNaN(key(a)) || isNaN(key(b))
    ? key(b).localeCompare(key(a)) : key(b) - key(a);
  body.append(...[...body.rows].sort((a, b) => down ? order(b, a) : order(a, b)));
}
function cell(text, kind = "", value = null) {
  return el("td", {class: kind, ...(value == null ? {} : {"data-value": value})}, text);
}
const KINDS = {
  "compute": FORWARD, "compute again": AGAIN, "page in": PAGE_IN, "page out": PAGE_OUT,
  "wait": WAIT,
};

const WIDEST = 48;  // characters of a tensor's name in a table
const BLOCK = 100;  // rows

function listing() {
  const ran = data.run != null;
  const columns = [
    ["#", "n"], [`begins ${planned.name}`, "n"], [`takes ${planned.name}`, "n"],
    ...(ran ? [[`took ${measured.name}`, "n"]] : []),
    ["statement", ""], ["tensor", ""], ["bytes", "n"], ["at", "n"], ["RAM used", "n"], ["what", ""],
  ];
  const texts = data.rows.map((row, i) => {
    const tensor = data.tensors[row[ROW.tensor]];
    return [
      String(i), planned.text(row[ROW.begin]), planned.text(row[ROW.takes]),
      ...(ran ? [measured.text(row[ROW.took])] : []),
      row[ROW.statement], tensor ? tensor[T.name] : "", tensor ? number(tensor[T.bytes]) : "",
      number(row[ROW.offset]), number(row[ROW.ram]), row[ROW.what],
    ];
  });
  const name = columns.findIndex(([word]) => word === "tensor");
  const styles = columns.map(([, kind], i) => i === name ? "name" : i === name - 1 ? "k" : kind);
  const lines = texts.map((words, i) => {
    const kind = KINDS[data.rows[i][ROW.statement]];
    const cells = words.map((word, column) => cell(word, styles[column]));
    if (words[name].length > WIDEST) cells[name].title = words[name];
    if (kind != null) cells[name - 1].style.setProperty("--c", `var(--k${kind})`);
    return el("tr", {"data-statement": i, "data-tensor": data.rows[i][ROW.tensor]}, ...cells);
  });
  // Blocks with columns of the same widths: the browser lays out only the visible blocks.
  const widths = columns.map(([word], column) =>
    texts.reduce((most, words) => Math.max(most, words[column].length), word.length));
  widths[name] = Math.min(widths[name], WIDEST);
  const cols = () => widths.map(count => el("col", {style: `width: calc(${count}ch + 26px)`}));
  const sizes = () => el("colgroup", {}, ...cols());
  const head = table(columns, []);
  head.prepend(sizes());
  const total = widths.reduce((all, count) => all + count, 0);
  const style = `min-width: calc(${total}ch + ${26 * widths.length}px)`;
  const all = el("div", {style, class: "all"}, el("div", {class: "head"}, head));
  for (let i = 0; i < lines.length; i += BLOCK) {
    const some = lines.slice(i, i + BLOCK);
    const block = el("table", {}, sizes(), el("tbody", {}, ...some));
    all.append(el("div", {class: "block", style: `--rows: ${some.length}`}, block));
  }
  $("listing").append(all);
}
