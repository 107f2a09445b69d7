// The equation, the curves and the map follow the sliders. n and rates as break_even.py.
"use strict";
const HIGHEST = 0.99;
const at = (id) => document.getElementById(id);
const raised = (hazard, lift) => {
  if (hazard <= 0 || hazard >= 1) return hazard;
  const odds = hazard / (1 - hazard) * Math.exp(lift);
  return odds / (1 + odds);
};
function tokensOf(tier, acceptance) {
  let held = 1, sum = 1;
  for (let depth = 0; depth < tier.steps; depth++) {
    held *= raised(acceptance, tier.lifts[depth]);
    sum += held;
  }
  return sum;
}
const overNone = (cell, tier, acceptance) => tokensOf(tier, acceptance) / tier.ms * cell.noneMs;
const chainOf = (cell, steps) => cell.tiers.find((tier) => tier.isChain && tier.steps === steps);
const plain = (steps) => ({ steps, lifts: Array(steps).fill(0) });
function best(cell, acceptance) {
  return cell.tiers.reduce((found, tier) =>
    overNone(cell, tier, acceptance) > overNone(cell, found, acceptance) ? tier : found);
}

const sliders = { acceptance: at("acceptance"), batch: at("batch"), steps: at("steps"), draft: at("draft") };
const chosen = () => ({
  cell: DATA.sizes[Number(sliders.batch.value)], acceptance: Number(sliders.acceptance.value),
  steps: Number(sliders.steps.value), draftMs: Number(sliders.draft.value),
});
// t = K * draft + verify; K = 0 is no speculation.
const modelMs = ({ cell, draftMs }, steps) => steps ? steps * draftMs + cell.verifyMs : cell.noneMs;
const modelGain = (state, steps) =>
  tokensOf(plain(steps), state.acceptance) / modelMs(state, steps) * state.cell.noneMs;

function slider(name, low, high, step, value) {
  Object.assign(sliders[name], { min: low, max: high, step });
  sliders[name].value = value;
  sliders[name].addEventListener("input", () => { if (name === "batch") takeDraftCost(); show(); });
}
function takeDraftCost() {
  const draftMs = chosen().cell.draftMs;
  sliders.draft.disabled = draftMs === null;
  if (draftMs !== null) Object.assign(sliders.draft, { max: Math.max(4 * draftMs, 0.1), value: draftMs });
}

function curveData(state) {
  const xs = [...Array(DATA.maxSteps + 1).keys()];
  const measured = xs.map((steps) => {
    const tier = chainOf(state.cell, steps);
    return tier ? overNone(state.cell, tier, state.acceptance) : null;
  });
  const model = xs.map((steps) => state.cell.verifyMs === null ? null : modelGain(state, steps));
  return [xs, measured, model, xs.map(() => 1)];
}
function gainData(state) {
  const xs = [...Array(100).keys()].map((each) => each / 100);
  return [xs, xs.map((a) => overNone(state.cell, best(state.cell, a), a)), xs.map(() => 1)];
}

function showEquation(state) {
  const { cell, acceptance, steps, draftMs } = state, a = acceptance.toFixed(2);
  const n = tokensOf(plain(steps), acceptance), tier = chainOf(cell, steps);
  at("tokens").textContent =
    `n = (1 - ${a}^${steps + 1}) / (1 - ${a}) = ${n.toFixed(3)} tokens of a request`;
  at("model").textContent = cell.verifyMs === null ? "No chain drafts at this batch." :
    `model: t = K * draft + verify = ${steps} * ${draftMs.toFixed(2)} + ${cell.verifyMs.toFixed(2)} = ` +
    `${modelMs(state, steps).toFixed(2)} ms, ${modelGain(state, steps).toFixed(2)} times no speculation`;
  at("measured").textContent = tier ?
    `measured: ${tier.ms.toFixed(2)} ms a round, without speculation ${cell.noneMs.toFixed(2)} ms: ` +
    `${overNone(cell, tier, acceptance).toFixed(2)} times no speculation` :
    `measured: no round of ${steps} steps at this batch`;
  const pays = best(cell, acceptance);
  const from = cell.breakEven === null ? "never pays" : `pays from acceptance ${cell.breakEven.toFixed(2)} on`;
  at("answer").textContent = `At batch ${cell.size} speculation ${from}. At ${a} the tier that pays is ` +
    `${pays.label}: ${overNone(cell, pays, acceptance).toFixed(2)} times no speculation.`;
  at("acceptance-is").textContent = a;
  at("batch-is").textContent = cell.size;
  at("steps-is").textContent = steps;
  at("draft-is").textContent = draftMs.toFixed(2);
}

const nearest = (values, value) => values.reduce((found, each, index) =>
  Math.abs(each - value) < Math.abs(values[found] - value) ? index : found, 0);
function makeMap() {
  const head = at("map").insertRow();
  for (const text of ["batch", ...DATA.acceptances]) {
    head.appendChild(Object.assign(document.createElement("th"), { textContent: text }));
  }
  for (const cell of DATA.sizes) {
    const row = at("map").insertRow();
    row.appendChild(Object.assign(document.createElement("th"), { textContent: cell.size }));
    for (const acceptance of DATA.acceptances) {
      const tier = best(cell, acceptance), gain = overNone(cell, tier, acceptance);
      const square = row.insertCell();
      square.textContent = tier.label;
      square.appendChild(Object.assign(document.createElement("small"), { textContent: gain.toFixed(2) }));
      const shade = Math.min(Math.abs(Math.log(gain)), 1);
      square.style.background = `rgba(var(${gain >= 1 ? "--gain" : "--loss"}), ${0.6 * shade})`;
    }
  }
}
function mark(name, size, acceptance) {
  for (const square of document.querySelectorAll(`.map .${name}`)) square.classList.remove(name);
  const row = at("map").rows[1 + nearest(DATA.sizes.map((each) => each.size), size)];
  row.cells[1 + nearest(DATA.acceptances, acceptance)].classList.add(name);
}

let curve = null, gains = null;
function show() {
  const state = chosen();
  showEquation(state);
  mark("chosen", state.cell.size, state.acceptance);
  curve?.setData(curveData(state));
  gains?.setData(gainData(state));
}

slider("acceptance", 0, HIGHEST, 0.01, DATA.start.acceptance);
slider("batch", 0, DATA.sizes.length - 1, 1, DATA.start.size);
slider("steps", 1, DATA.maxSteps, 1, DATA.start.steps);
slider("draft", 0, 1, "any", 0);
takeDraftCost();
makeMap();
if (DATA.now) {
  mark("live", DATA.now.size, DATA.now.acceptance);
  at("live-is").textContent = ` Dashed: the server now, batch ${DATA.now.size}, acceptance ` +
    `${DATA.now.acceptance.toFixed(2)}, at ${DATA.now.tier} steps.`;
}
const parity = { label: "no speculation" };
curve = chart("curve", { x: "K", y: "times" },
  [{ label: "measured", points: true }, { label: "model" }, parity], curveData(chosen()));
gains = chart("gains", { x: "acceptance", y: "times" },
  [{ label: "the tier that pays" }, parity], gainData(chosen()));
show();
