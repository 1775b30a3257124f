// Why a tensor left and came back.

const cost = ([us, energy]) => `${uj(energy)} and ${time(us)}`;
const named = tensors => tensors.length > 3
  ? `${tensors.slice(0, 3).join(", ")} and ${tensors.length - 3} more` : tensors.join(", ");

function why(away) {
  const name = data.tensors[away.node][T.name];
  const parts = [`Out of RAM for ${time(away.back_us - away.left_us)}, which freed ${bytes(away.size_bytes)}.`];
  const [us, energy] = away.spent;
  if (away.how === AGAIN) {
    parts.push(`Computing ${name} again costs ${cost(away.spent)};`);
    parts.push(away.instead
      ? `paging it would cost ${cost(away.instead)}${better(energy, away.instead[1])}.`
      : "there is no storage to page it to.");
  } else {
    const hidden = us > 0 ? `, ${share(away.hidden_us / us)} of it while the processor computes` : "";
    parts.push(`Paging it costs ${cost(away.spent)}${hidden};`);
    if (!away.instead) parts.push("it cannot be computed again.");
    else {
      const need = away.missing.length ? `, and first ${named(away.missing)}, not in RAM then` : "";
      parts.push(`computing it again would cost ${cost(away.instead)}${need}${need ? "" : better(energy, away.instead[1])}.`);
    }
  }
  const over = away.without_bytes - data.plan.ram_bytes;
  parts.push(`Had it stayed, all else the same, ${bytes(away.without_bytes)} would have been in use: ` + (over > 0
    ? `${number(over)} more than the budget.`
    : away.place_taken ? "within the budget by their sum, but others took its place."
    : "within the budget, and its place stayed free: a better plan keeps it."));
  return parts.join(" ");
}
function better(spent, instead) {
  const gain = instead - spent;
  if (Math.abs(gain) < 0.0005) return ", the same";
  return gain > 0 ? `, so ${uj(gain)} are saved` : `, ${uj(-gain)} less`;
}

function reasons() {
  const section = $("why"), {plan, keep} = data;
  section.append(el("h2", {}, "What was recomputed and paged, and why it paid"));
  if (!data.away.length) {
    section.append(el("p", {class: "quiet"}, "Nothing leaves RAM that is needed again: this plan keeps everything."));
    return;
  }
  const again = data.away.filter(one => one.how === AGAIN), paged = data.away.filter(one => one.how === PAGE_IN);
  const extra = sum(data.away);
  section.append(el("p", {},
    `Coming back costs ${uj(extra)} in all${plan.energy_uj ? `, ${share(extra / plan.energy_uj)} of the step` : ""}: ${uj(sum(again))} to compute ${again.length} tensors again, ` +
    `${uj(sum(paged))} to page ${paged.length}. ` +
    (keep?.peak_bytes ? `For that, ${bytes(plan.peak_bytes ?? data.views[0].peak_bytes)} of RAM do in place of ${number(keep.peak_bytes)}.` : "")));
  section.append(el("p", {class: "quiet"},
    "The other way: what paging it out and in, or computing it again, would have cost by the same profile. " +
    "Inputs that came back for its sake have rows of their own. RAM had it stayed, and how much over the budget that is: the most bytes in use while it was away, its own included, all other statements the same; a sum, which placement can only raise."));
  const columns = [["tensor", ""], ["bytes", "n"], [`left ${planned.name}`, "n"], [`away ${planned.name}`, "n"], [`KiB × ${planned.long} freed`, "n"], ["came back", ""],
    ["costs µJ", "n"], [planned.name, "n"], ["other way µJ", "n"], [planned.name, "n"], ["RAM had it stayed", "n"], ["over", "n"]];
  const rows = data.away.map(away => {
    const [us, energy] = away.spent, gone = away.back_us - away.left_us, over = away.without_bytes - plan.ram_bytes;
    const freed = away.size_bytes / 1024 * gone / (planned.long === "s" ? 1e6 : 1e3);
    const back = cell(data.kinds[away.how], "k");
    back.style.setProperty("--c", `var(--k${away.how})`);
    const other = away.instead
      ? [cell(number(away.instead[1], 1) + (away.missing.length && away.how === PAGE_IN ? " +" : ""), "n", away.instead[1]), cell(planned.text(away.instead[0]), "n", away.instead[0])]
      : [cell("cannot", "n", 0), cell("", "n", 0)];
    const line = el("tr", {"data-statement": away.back, "data-tensor": away.node, title: why(away)},
      cell(data.tensors[away.node][T.name], "name"), cell(number(away.size_bytes), "n", away.size_bytes),
      cell(planned.text(away.left_us), "n", away.left_us), cell(planned.text(gone), "n", gone), cell(number(freed, freed < 1 ? 3 : 1), "n", freed),
      back, cell(number(energy, 1), "n", energy), cell(planned.text(us), "n", us), ...other,
      cell(number(away.without_bytes), "n", away.without_bytes), cell(over > 0 ? `+${number(over)}` : away.place_taken ? "place taken" : "fits", "n", over));
    return line;
  });
  section.append(el("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "What was recomputed and paged"}, table(columns, rows, true)));
  if (data.away.some(away => away.missing.length && away.instead && away.how === PAGE_IN))
    section.append(el("p", {class: "quiet"}, "+ and what computing its inputs would have cost, which were not in RAM."));
}
