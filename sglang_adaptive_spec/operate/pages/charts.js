// A chart in a container of the page, as wide as it and in its colours.
"use strict";
const COLOURS = ["#0b7285", "#e67700", "#862e9c", "#2b8a3e", "#c92a2a", "#1864ab", "#5f3dc4", "#a61e4d"];

const colour = (index) => COLOURS[index % COLOURS.length];
const inStyle = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// series: [{label, points?, fill?}], data: [xs, ys, ...]; returns the chart.
function chart(where, options, series, data) {
  const box = document.getElementById(where);
  const axis = () => ({ stroke: () => inStyle("--text"), grid: { stroke: () => inStyle("--line") },
    ticks: { stroke: () => inStyle("--line") } });
  const made = new uPlot({
    width: box.clientWidth, height: 240,
    scales: { x: { time: Boolean(options.isTime) }, y: { range: options.range } },
    axes: [{ ...axis(), label: options.x }, { ...axis(), label: options.y, size: 64 }],
    series: [{ label: options.x }, ...series.map((each, index) => ({
      label: each.label, stroke: colour(index), width: 2, spanGaps: false, fill: each.fill && colour(index),
      paths: each.points ? () => null : each.steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
      points: { show: Boolean(each.points), size: 9, fill: colour(index) },
      value: (_, value) => value == null ? "-" : value.toFixed(3),
    }))],
  }, data, box);
  new ResizeObserver(() => made.setSize({ width: box.clientWidth, height: 240 })).observe(box);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => made.redraw());
  return made;
}
