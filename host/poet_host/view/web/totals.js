// The cards at the top: totals of a step, planned and measured.

function card(title, value, ...lines) {
  $("cards").append(el("div", {class: "card"}, el("span", {}, title), el("b", {}, value),
    ...lines.filter(Boolean).map(line => el("span", {}, line))));
}
// The step's time. The last bar may end before the processor has done the work of a transfer.
const promised = data.plan.time_us ?? data.views[0].end_us;
const sum = absences => absences.reduce((total, away) => total + away.spent[1], 0);

function totals() {
  const {plan, keep, run} = data, view = data.views[0];
  $("name").textContent = data.name;
  $("about").textContent = (data.board ? `on ${data.board}, ` : "") +
    `${number(data.rows.length)} statements in ${bytes(data.plan_bytes)}, method ${plan.method}` +
    (plan.note ? `: ${plan.note}` : "") +
    (run ? `; run of ${run.steps.length} steps on ${run.board}` : "");
  const times = (mine, all, text) => all
    ? `${number(mine / all, 2)} × keeping everything (${text(all)})` : "";
  if (plan.energy_uj != null)
    card("energy above the sleeping board", uj(plan.energy_uj),
      times(plan.energy_uj, keep?.energy_uj, uj),
      run?.energy_uj != null && `measured ${uj(run.energy_uj)}, with the commit: ` +
        "time in each power state times its power");
  card("time of a step", time(promised), times(promised, keep?.time_us, time), measuredTime(run));
  card("height of the arena", bytes(view.height_bytes), `budget ${bytes(plan.ram_bytes)}`,
    `fullest moment: ${bytes(view.fullest_bytes)} in use`,
    keep?.peak_bytes && `keeping everything needs ${number(keep.peak_bytes)}`,
    run && `measured high-water mark ${number(run.peak_bytes)}`);
  if (plan.gap != null)
    card("proof", plan.status === "optimal" ? "optimal" : `gap ${share(plan.gap)}`,
      plan.bound_uj != null && `no plan needs less than ${uj(plan.bound_uj)}`,
      plan.solve_s ? `solved in ${number(plan.solve_s, 1)} s` : "");
  const again = data.away.filter(away => away.how === AGAIN);
  const paged = data.away.filter(away => away.how === PAGE_IN);
  card("computed again, paged", `${again.length}, ${paged.length}`,
    `for ${uj(sum(again))} and ${uj(sum(paged))}`);
  data.kinds.forEach((word, kind) => {
    if (!data.views.some(view => view.bars.some(bar => bar[BAR.kind] === kind))) return;
    $("legend").append(el("li", {}, el("i", {style: `background:var(--k${kind})`}), word));
  });
  $("foot").textContent = `poet-host ${data.version}. ` +
    "Times and energies of the plan come from the profile that it was solved with.";
}
function measuredTime(run) {
  if (run?.step_us == null) return "";
  const where = same ? ` (${signed(promised / run.step_us - 1)} predicted)` : ` on ${run.board}`;
  const rest = time(run.time_us - run.step_us);
  return `measured ${time(run.step_us)}${where}, and ${rest} of commit and answers to the host: ` +
    `${run.statistic} of ${counted(run.steps.length, "step")}`;
}
