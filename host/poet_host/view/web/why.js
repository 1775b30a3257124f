// Why a tensor left RAM and came back: a text for each absence, and the table of all.

const cost = ([us, energy]) => `${uj(energy)} and ${time(us)}`;
const named = tensors => tensors.length > 3
  ? `${tensors.slice(0, 3).join(", ")} and ${tensors.length - 3} more` : tensors.join(", ");

function why(away) {
  const name = data.tensors[away.node][T.name], out = time(away.back_us - away.left_us);
  const parts = [`Out of RAM for ${out}, which freed ${bytes(away.size_bytes)}.`];
  const [us, energy] = away.spent;
  if (away.how === AGAIN) {
    parts.push(`Computing ${name} again costs ${cost(away.spent)};`);
    parts.push(away.instead
      ? `paging it would cost ${cost(away.instead)}${better(energy, away.instead[1])}.`
      : "there is no storage to page it to.");
  } else {
    const hidden = us > 0
      ? `, ${share(away.hidden_us / us)} of this time while the processor computes` : "";
    parts.push(`Paging it costs ${cost(away.spent)}${hidden};`);
    if (!away.instead) parts.push("it cannot be computed again.");
    else {
      const rest = away.missing.length
        ? `, in addition to the cost of ${named(away.missing)}, not in RAM then`
        : better(energy, away.instead[1]);
      parts.push(`computing it again would cost ${cost(away.instead)}${rest}.`);
    }
  }
  const over = away.without_bytes - data.plan.ram_bytes;
  const stays = over > 0 ? `${number(over)} more than the budget.`
    : away.place_taken ? "within the budget by their sum, but other tensors used its place."
    : "within the budget, and its place stayed free: a better plan keeps it.";
  parts.push(`If it had stayed, ${bytes(away.without_bytes)} would have been in use: ${stays}`);
  return parts.join(" ");
}
function better(spent, instead) {
  const gain = instead - spent;
  if (Math.abs(gain) < 0.0005) return ", the same";
  return gain > 0 ? `, so ${uj(gain)} are saved` : `, ${uj(-gain)} less`;
}

function reasons() {
  const section = $("why"), {plan, keep} = data, title = "What was recomputed and paged";
  section.append(el("h2", {}, `${title}, and why it paid`));
  if (!data.away.length) {
    section.append(quiet("No tensor leaves RAM before its last use: this plan keeps everything."));
    return;
  }
  const again = data.away.filter(away => away.how === AGAIN);
  const paged = data.away.filter(away => away.how === PAGE_IN);
  const extra = sum(data.away), height = plan.peak_bytes ?? data.views[0].height_bytes;
  section.append(el("p", {}, `Bringing tensors back costs ${uj(extra)} in all` +
    (plan.energy_uj ? `, ${share(extra / plan.energy_uj)} of the step` : "") +
    `: ${uj(sum(again))} to compute ${again.length} tensors again, ` +
    `${uj(sum(paged))} to page ${paged.length}. ` +
    (keep?.peak_bytes
      ? `In return, ${bytes(height)} of RAM are enough, not ${number(keep.peak_bytes)}.` : "")));
  section.append(quiet(
    "The other way is paging instead of computing again, or computing again instead of paging, " +
    "with the costs of the same profile. Inputs that came back for a recomputation have rows of " +
    "their own. RAM if it had stayed is the most bytes in use while the tensor was away, plus " +
    "its bytes, with all other statements the same. It is a sum: placement can only increase it."));
  const columns = [
    ["tensor", ""], ["bytes", "n"], [`left ${planned.name}`, "n"], [`away ${planned.name}`, "n"],
    [`KiB × ${planned.long} freed`, "n"], ["came back", ""],
    ["costs µJ", "n"], [planned.name, "n"], ["other way µJ", "n"], [planned.name, "n"],
    ["RAM if it had stayed", "n"], ["over", "n"],
  ];
  section.append(region(title, table(columns, data.away.map(absenceRow), true)));
  if (data.away.some(isCostlier))
    section.append(quiet("+: in addition, the cost of computing inputs that were not in RAM."));
}
// True if computing the tensor again also needs inputs that were not in RAM.
const isCostlier = away => away.missing.length && away.instead && away.how === PAGE_IN;

function absenceRow(away) {
  const [us, energy] = away.spent, gone = away.back_us - away.left_us;
  const over = away.without_bytes - data.plan.ram_bytes;
  const freed = away.size_bytes / 1024 * gone / (planned.long === "s" ? 1e6 : 1e3);
  const back = cell(data.kinds[away.how], "k");
  back.style.setProperty("--c", `var(--k${away.how})`);
  const other = away.instead
    ? [
      cell(number(away.instead[1], 1) + (isCostlier(away) ? " +" : ""), "n", away.instead[1]),
      cell(planned.text(away.instead[0]), "n", away.instead[0]),
    ]
    : [cell("cannot", "n", 0), cell("", "n", 0)];
  const fits = over > 0 ? `+${number(over)}` : away.place_taken ? "place taken" : "fits";
  return el("tr",
    {"data-statement": away.back, "data-tensor": away.node, title: why(away)},
    cell(data.tensors[away.node][T.name], "name"),
    cell(number(away.size_bytes), "n", away.size_bytes),
    cell(planned.text(away.left_us), "n", away.left_us),
    cell(planned.text(gone), "n", gone),
    cell(number(freed, freed < 1 ? 3 : 1), "n", freed),
    back,
    cell(number(energy, 1), "n", energy),
    cell(planned.text(us), "n", us),
    ...other,
    cell(number(away.without_bytes), "n", away.without_bytes),
    cell(fits, "n", over));
}
