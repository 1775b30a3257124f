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
