// Totals.

function card(title, value, ...lines) {
  $("cards").append(el("div", {class: "card"}, el("span", {}, title), el("b", {}, value),
    ...lines.filter(Boolean).map(line => el("span", {}, line))));
}
// The step's time; the last bar may end before the processor has done the work of a transfer.
const promised = data.plan.time_us ?? data.views[0].end_us;
function totals() {
  const {plan, keep, run} = data, view = data.views[0];
  $("name").textContent = data.name;
  const on = data.board ? `on ${data.board}, ` : "";
  $("about").textContent = `${on}${number(data.rows.length)} statements in ${bytes(data.plan_bytes)}, method ${plan.method}` +
    (plan.note ? `: ${plan.note}` : "") + (run ? `; run of ${run.steps.length} steps on ${run.board}` : "");
  const times = (mine, all) => all ? `${number(mine / all, 2)} × keeping everything (${all === keep.energy_uj ? uj(all) : time(all)})` : "";
  if (plan.energy_uj != null) card("energy of a step", uj(plan.energy_uj), times(plan.energy_uj, keep?.energy_uj),
    run?.energy_uj != null && `measured ${uj(run.energy_uj)}, commit included, by the powers of the board's states`);
  card("time of a step", time(promised), times(promised, keep?.time_us),
    run?.step_us != null && `measured ${time(run.step_us)}${same ? ` (${signed(promised / run.step_us - 1)} predicted)` : ` on ${run.board}`}, and ${time(run.time_us - run.step_us)} of commit and answers to the host`);
  card("RAM at the peak", bytes(view.peak_bytes), `budget ${bytes(plan.ram_bytes)}`,
    keep?.peak_bytes && `keeping everything needs ${number(keep.peak_bytes)}`,
    run && `measured high-water mark ${number(run.peak_bytes)}`);
  if (plan.bound_uj != null) card("proof", plan.status === "optimal" ? "optimal" : `gap ${share(plan.gap)}`,
    `no plan needs less than ${uj(plan.bound_uj)}`, plan.solve_s ? `solved in ${number(plan.solve_s, 1)} s` : "");
  const again = data.away.filter(one => one.how === AGAIN), paged = data.away.filter(one => one.how === PAGE_IN);
  card("computed again, paged", `${again.length}, ${paged.length}`,
    `for ${uj(sum(again))} and ${uj(sum(paged))}`);
  data.kinds.forEach((word, kind) => {
    if (!data.views.some(view => view.bars.some(bar => bar[BAR.kind] === kind))) return;
    $("legend").append(el("li", {}, el("i", {style: `background:var(--k${kind})`}), word));
  });
  $("foot").textContent = `poet-host ${data.version}. Times and energies of the plan are those of the profile that it was solved for.`;
}
const sum = list => list.reduce((total, one) => total + one.spent[1], 0);
