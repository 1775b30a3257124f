// A recorded run: predicted and measured times, and the curve of the loss.

const measuredText = run =>
  `Times of one step on ${run.board}: ` +
  `the ${run.statistic} over the steps that traced a statement. ` +
  "A prediction includes the time between statements. The trace of an operator does not, so that " +
  "time has a row of its own. The measured lanes above show the latest traced step" +
  (same ? "." : ", stretched to the length of the plan, which is for " +
    `${data.board ?? "no board"}, not for ${run.board}.`);

function recorded() {
  const {run} = data;
  if (!run) return;
  $("comparison").hidden = false;
  const title = "Predicted and measured";
  const line = (what, count, mine, real) => {
    const error = mine != null && real && same ? mine / real - 1 : null;
    return el("tr", {}, cell(what), cell(count, "n", count),
      cell(planned.text(mine), "n", mine ?? 0), cell(measured.text(real), "n", real),
      cell(error == null ? "" : signed(error), "n", error ?? 0));
  };
  const rows = run.comparison.map(([what, count, mine, real]) =>
    line(what, number(count), mine, real));
  const columns = [
    ["kind of work", ""], ["times", "n"], [`predicted ${planned.name}`, "n"],
    [`measured ${measured.name}`, "n"], ["error", "n"],
  ];
  const body = table(columns, rows, true);
  if (run.step_us != null) {
    const what = "a step without commit and answers to the host";
    body.append(el("tfoot", {}, line(what, "", promised, run.step_us)));
  }
  $("comparison").append(el("h2", {}, title), quiet(measuredText(run)), region(title, body));
  if (run.steps.length) learning(run);
}

const CURVE = {width: 900, height: 220, left: 60, right: 12, top: 12, bottom: 42};

function learning({steps, data: set, batch, ended}) {
  const box = $("learning"), {width: w, height: h, left, right} = CURVE, svg = $("curve");
  box.hidden = false;
  const losses = steps.map(step => step[1]);
  // No Math.max(...losses): it cannot take a hundred thousand arguments.
  const most = losses.reduce((a, b) => Math.max(a, b));
  const least = losses.reduce((a, b) => Math.min(a, b), 0);
  const px = i => left + (steps.length > 1 ? i / (steps.length - 1) : .5) * (w - left - right);
  const py = loss => CURVE.top +
    (1 - (loss - least) / (most - least || 1)) * (h - CURVE.bottom);
  svg.setAttribute("viewBox", `0 0 ${w} ${h}`);
  const [first, last] = [number(losses[0], 4), number(losses.at(-1), 4)];
  svg.setAttribute("aria-label", `Loss from ${first} to ${last}`);
  const add = (tag, attributes, text) => {
    const made = document.createElementNS(svg.namespaceURI, tag);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text != null) made.textContent = text;
    svg.append(made);
  };
  for (const part of [0, .5, 1]) {
    const v = least + part * (most - least);
    add("line", {x1: left, x2: w - right, y1: py(v), y2: py(v), stroke: "var(--rule)"});
    add("text", {x: left - 8, y: py(v) + 4, "text-anchor": "end"}, number(v, 3));
  }
  const points = losses.map((v, i) => `${px(i).toFixed(1)},${py(v).toFixed(1)}`).join(" ");
  add("polyline", {points, fill: "none", stroke: "var(--k0)", "stroke-width": 1.8});
  if (steps.length === 1) add("circle", {cx: px(0), cy: py(losses[0]), r: 3, fill: "var(--k0)"});
  add("text", {x: left, y: h - 8}, `step ${steps[0][0]}`);
  add("text", {x: w - right, y: h - 8, "text-anchor": "end"}, `step ${steps.at(-1)[0]}`);
  const trained = `${counted(steps.length, "step")} of ${counted(batch, "sample")} of ${set}`;
  const how = ended === "done" ? "" : `; the run ended as ${ended.replace("_", " ")}`;
  box.prepend(el("h2", {}, "Loss"),
    quiet(`${trained}: ${first} at the first step, ${last} at the last${how}.`));
}
