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
