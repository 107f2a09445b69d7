// Charts over time. A minute without rounds has no row: gaps are idle time.
"use strict";
const x = DATA.isClock ? "time" : "seconds";
const over = (id, y, series, data, range) =>
  chart(id, { x, y, isTime: DATA.isClock, range }, series, [DATA.start, ...data]);
const named = (...labels) => labels.map((label) => ({ label }));

over("throughput", "tokens/s", named("tokens/s"), [DATA.tokens]);
over("load", "requests", named("batch", "waiting"), [DATA.batch, DATA.waiting]);
over("length", "tokens", named("accept length"), [DATA.length]);
over("shares", "share", named("drafts in vain", "prefill", "probes"),
  [DATA.inVain, DATA.prefill, DATA.probes], [0, 1]);

// Stacked: the sum of all tiers up to each, the largest drawn first.
const labels = Object.keys(DATA.tiers), sums = [];
labels.forEach((label, place) => sums.push(
  DATA.tiers[label].map((share, idx) => share + (place ? sums[place - 1][idx] : 0))));
over("tiers", "share", labels.map((label) => ({ label: `up to ${label} steps`, fill: true })).reverse(),
  sums.reverse(), [0, 1]);
