"use strict";
// Draws the page from its data. Everything from outside is set as text (textContent, setAttribute), never as HTML.
(() => {
  const content = JSON.parse(document.getElementById("data").textContent);
  const SVG = "http://www.w3.org/2000/svg";
  const MARKS = ["circle", "triangle", "diamond", "square", "pentagon", "star"];
  const COLOURS = 6;
  let serial = 0;

  // -- small tools ----------------------------------------------------------------------------------------------------

  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name === "on") for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
      else if (name === "style") Object.assign(node.style, value);
      else node.setAttribute(name, value === true ? "" : String(value));
    }
    for (const child of children.flat(Infinity)) {
      if (child !== null && child !== undefined) node.append(child);
    }
    return node;
  }
  const make = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
  const draw = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
  const fresh = (word) => `${word}-${++serial}`;
  const percent = (value, digits = 0) => (value === null ? "—" : `${(100 * value).toFixed(digits)} %`);
  const known = (value) => value !== null && value !== undefined;
  const say = (text) => { document.getElementById("said").textContent = text; };

  function brief(value) {
    if (!known(value)) return "—";
    const size = Math.abs(value);
    if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(1);
    return String(Number(value.toPrecision(size >= 100 ? 4 : 3)));
  }

  function ticks(low, high, count) {
    if (!(high > low)) return [low];
    const rough = (high - low) / Math.max(1, count);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= rough * 0.999);
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(Number((i * step).toPrecision(12)));
    return found;
  }

  function logTicks(low, high) {
    const found = [];
    const decades = Math.log10(high / low);
    const steps = decades < 1.5 ? [1, 2, 5] : decades < 3 ? [1, 3] : [1];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
      for (const n of steps) {
        const value = Number((n * 10 ** power).toPrecision(3));
        if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
      }
    }
    return found;
  }

  // -- how a row is drawn: colour by method, dash and hollow mark for its controls -------------------------------------

  function looks(study) {
    const found = new Map(), methods = new Map();
    let number = 0;
    for (const row of study.series) {
      const known = methods.get(row.method);
      if (row.role === "method" && known) found.set(row.label, known);  // the same method at another budget
      else if (row.role === "baseline") found.set(row.label, { colour: "var(--c0)", mark: "square", dash: "", width: 2.5, solid: true });
      else if (row.role === "method") {
        const dash = number >= COLOURS ? "10 3" : "";
        const look = { colour: `var(--c${(number % COLOURS) + 1})`, mark: MARKS[number % MARKS.length], dash, width: 2.25, solid: true };
        found.set(row.label, look);
        if (row.method) methods.set(row.method, look);
        number++;
      }
    }
    for (const row of study.series) {
      if (!row.control_of) continue;
      const owner = found.get(row.control_of) || { colour: "var(--dim)", mark: "circle" };
      const random = row.role === "rs2";
      found.set(row.label, { colour: owner.colour, mark: random ? "cross" : owner.mark, dash: random ? "2 4" : "7 4", width: 1.5, solid: false });
    }
    return found;
  }

  function mark(kind, x, y, size, look) {
    const corners = { triangle: [3, -90, 1.25], square: [4, -45, 1.2], diamond: [4, -90, 1.25], pentagon: [5, -90, 1.15] };
    const style = { stroke: look.colour, strokeWidth: "2", fill: look.solid ? look.colour : "var(--card)" };
    if (kind === "circle") return draw("circle", { cx: x, cy: y, r: size, style });
    if (kind === "cross") {
      const d = `M${x - size},${y - size}L${x + size},${y + size}M${x - size},${y + size}L${x + size},${y - size}`;
      return draw("path", { d, style: { ...style, fill: "none" } });
    }
    const at = (angle, radius) => `${x + radius * Math.cos(angle * Math.PI / 180)},${y + radius * Math.sin(angle * Math.PI / 180)}`;
    const points = [];
    if (kind === "star") for (let i = 0; i < 10; i++) points.push(at(-90 + 36 * i, size * (i % 2 ? 0.55 : 1.4)));
    else {
      const [count, from, grow] = corners[kind];
      for (let i = 0; i < count; i++) points.push(at(from + 360 * i / count, size * grow));
    }
    return draw("polygon", { points: points.join(" "), style: { ...style, strokeLinejoin: "round" } });
  }

  function swatch(look, line) {
    const svg = draw("svg", { class: "mark", width: line ? 30 : 16, height: 16, "aria-hidden": "true" });
    if (line) svg.append(draw("line", { x1: 1, x2: 29, y1: 8, y2: 8, style: { stroke: look.colour, strokeWidth: look.width, strokeDasharray: look.dash } }));
    svg.append(mark(look.mark, line ? 15 : 8, 8, 4, look));
    return svg;
  }

  // -- the frame of a chart ---------------------------------------------------------------------------------------------

  /** A figure with title, words, plot and the numbers behind it; `paint(width)` returns the SVG and is called again when the width changes. */
  function figure({ title, words, summary, paint, numbers, before = [], after = [] }) {
    const plot = make("div", { class: "plot" });
    const table = make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Numbers: ${title}` });
    const details = make("details", {}, make("summary", {}, "Numbers"), table);
    let width = 0;
    const refresh = () => {
      if (!width) return;
      const svg = paint(width, plot);
      fill(svg, { role: "img", "aria-label": summary() }, []);
      plot.replaceChildren(svg);
      if (details.open) table.replaceChildren(numberTable(numbers()));
    };
    details.addEventListener("toggle", () => { if (details.open) table.replaceChildren(numberTable(numbers())); });
    new ResizeObserver((entries) => {
      const now = Math.round(entries[0].contentRect.width);
      if (now && now !== width) requestAnimationFrame(() => { width = now; refresh(); });
    }).observe(plot);
    const node = make("figure", {}, make("figcaption", {}, make("h3", {}, title), words ? make("p", {}, words) : null), before, plot, after, details);
    return { node, refresh, plot };
  }

  function numberTable({ columns, rows }) {
    const head = make("tr", {}, columns.map((name) => make("th", { scope: "col" }, name)));
    const body = rows.map((row) => make("tr", {}, row.map((cell, place) => {
      const text = typeof cell === "number" ? brief(cell) : known(cell) ? cell : "—";
      return place ? make("td", {}, text) : make("th", { scope: "row" }, text);
    })));
    return make("table", {}, make("thead", {}, head), make("tbody", {}, body));
  }

  /** Scales, rules and labels of a plot; returns the SVG and the places of values. */
  function axes(width, height, x, y) {
    const wide = x.ticks.length > 1;
    const left = 12 + 7 * Math.max(...y.ticks.map((value) => y.text(value).length));
    const frame = { left, right: width - 14, top: 26, bottom: height - 42 };
    const place = (axis, from, to) => {
      const scale = axis.log ? Math.log : (value) => value;
      const low = scale(axis.low), high = scale(axis.high);
      return (value) => from + (high > low ? (scale(value) - low) / (high - low) : 0.5) * (to - from);
    };
    const px = place(x, frame.left, frame.right), py = place(y, frame.bottom, frame.top);
    const svg = draw("svg", { height, viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "xMinYMin" });
    for (const value of y.ticks) {
      svg.append(draw("line", { class: "rule", x1: frame.left, x2: frame.right, y1: py(value), y2: py(value) }));
      svg.append(draw("text", { x: frame.left - 7, y: py(value) + 4, "text-anchor": "end" }, y.text(value)));
    }
    for (const value of x.ticks) {
      svg.append(draw("line", { class: "rule", x1: px(value), x2: px(value), y1: frame.bottom, y2: frame.bottom + 5 }));
      svg.append(draw("text", { x: px(value), y: frame.bottom + 19, "text-anchor": wide ? "middle" : "start" }, x.text(value)));
    }
    svg.append(draw("line", { class: "axis", x1: frame.left, x2: frame.right, y1: frame.bottom, y2: frame.bottom }));
    svg.append(draw("text", { x: 0, y: 12 }, y.name));
    svg.append(draw("text", { x: frame.right, y: height - 5, "text-anchor": "end" }, x.name));
    return { svg, px, py, frame };
  }

  function axis(values, { name, text = brief, log = false, count = 5, from = null, to = null, room = 0.04 }) {
    let low = Math.min(...values), high = Math.max(...values);
    if (!values.length) [low, high] = [0, 1];
    if (log) {
      low = Math.max(low, 1e-5) / 1.1; high = Math.max(high, low * 1.5) * 1.1;
      return { name, text, log, low, high, ticks: logTicks(low, high) };
    }
    if (from !== null) low = Math.min(low, from);
    if (to !== null) high = Math.max(high, to);
    const space = (high - low || Math.abs(high) || 1) * room;
    if (from === null || low < from) low -= space;
    high += space;
    return { name, text, log, low, high, ticks: ticks(low, high, count) };
  }

  /** Tells about the nearest spot, in pixels; for the eye only, as the numbers are in the table. */
  function tips(plot, svg, spots) {
    const tip = make("div", { class: "tip", "aria-hidden": "true", hidden: true });
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const x = event.clientX - box.left, y = event.clientY - box.top;
      let best = null, distance = 45;
      for (const spot of spots) {
        const away = Math.hypot(spot.x - x, spot.y - y);
        if (away < distance) [best, distance] = [spot, away];
      }
      tip.hidden = !best;
      if (!best) return;
      if (tip.parentNode !== plot) plot.append(tip);
      tip.textContent = best.text;
      const over = best.x > box.width / 2;
      Object.assign(tip.style, { top: `${Math.max(0, best.y - 12)}px`, left: over ? "" : `${best.x + 12}px`, right: over ? `${box.width - best.x + 12}px` : "" });
    });
    svg.addEventListener("pointerleave", () => { tip.hidden = true; });
  }

  const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");

  /** A row of choices of which one holds. */
  function choices(name, options, chosen, act, barred = {}) {
    const group = fresh("choice");
    return make("fieldset", {}, make("legend", {}, name), Object.entries(options).map(([value, text]) =>
      make("label", { class: "choice", title: barred[value] },
        make("input", { type: "radio", name: group, value, checked: value === chosen, disabled: value in barred, on: { change: () => act(value) } }), text)));
  }

  function legend(rows, look, hidden, act) {
    return make("ul", { class: "legend", "aria-label": "Lines" }, rows.map((row) => {
      const button = make("button", { type: "button", "aria-pressed": String(!hidden.has(row.label)) }, swatch(look.get(row.label), true), row.label);
      button.addEventListener("click", () => {
        if (hidden.has(row.label)) hidden.delete(row.label); else hidden.add(row.label);
        button.setAttribute("aria-pressed", String(!hidden.has(row.label)));
        act();
      });
      return make("li", {}, button);
    }));
  }

  const keys = (items) => make("ul", { class: "legend plain" }, items.map(([colour, text]) =>
    make("li", {}, make("span", { class: "key", style: { background: colour } }), text)));

  // -- the table ----------------------------------------------------------------------------------------------------------

  function sortable(study, look) {
    const { columns, rows } = study.table;
    const body = make("tbody", {});
    const head = [];
    let by = -2, down = false;
    const words = (place) => place >= 0 && !columns[place].numeric;
    const value = (row) => (by < 0 ? row.label : row.values[by]);
    function compare(a, b) {
      const [x, y] = [value(a), value(b)];
      if (!known(x) || !known(y)) return known(x) ? -1 : known(y) ? 1 : 0; // what is not known comes last, either way
      const order = typeof x === "string" ? x.localeCompare(y) : x - y;
      return down ? -order : order;
    }
    function show() {
      const sorted = by === -2 ? rows : [...rows].sort(compare);
      body.replaceChildren(...sorted.map((row) => make("tr", { class: row.control_of ? "control" : "" },
        make("th", { scope: "row" }, make("div", { class: "row" }, swatch(look.get(row.label)), row.label)),
        row.cells.map((cell, place) => make("td", { class: words(place) ? "words" : "" }, cell)))));
      head.forEach((cell, place) => {
        if (place - 1 === by) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
        else cell.removeAttribute("aria-sort");
      });
    }
    function choose(place, name) {
      if (by !== place) [by, down] = [place, place >= 0 && columns[place].numeric];
      else if (down === (place >= 0 && columns[place].numeric)) down = !down;
      else by = -2;
      show();
      say(by === -2 ? "In the original order" : `Sorted by ${name}, ${down ? "highest" : "lowest"} first`);
    }
    for (const [place, column] of [[-1, { name: study.kind === "runs" ? "run" : "method", help: "" }], ...columns.map((c, i) => [i, c])]) {
      const button = make("button", { type: "button", title: column.help, on: { click: () => choose(place, column.name) } }, column.name);
      head.push(make("th", { scope: "col", class: words(place) ? "words" : "" }, button));
    }
    show();
    return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Results" },
      make("table", { class: "results" }, make("thead", {}, make("tr", {}, head)), body));
  }

  // -- the picture that decides ---------------------------------------------------------------------------------------------

  function decision(study, look) {
    let against = study.timed && study.unit === "time" ? "time" : "cost";  // what its budgets are shares of
    const controlled = (point) => point.role === "equal-budget" || point.role === "rs2";
    // Controls that waited for their method took no turns with full training. Plain steps take what they cost, so that is their place.
    // What was asked for stands in for the time of a run that was resumed.
    const at = (point) => {
      if (against === "cost") return point.cost_ratio;
      if (known(point.time_ratio)) return point.time_ratio;
      return study.unit === "time" ? (point.role === "baseline" ? 1 : point.budget) : controlled(point) ? point.cost_ratio : null;
    };
    const shown = () => study.points.filter((point) => known(at(point)));
    const line = () => shown().filter((p) => p.role === "baseline" || p.role === "equal-budget").sort((a, b) => at(a) - at(b));
    const name = () => (against === "cost" ? "cost" : "time");
    function paint(width, plot) {
      const points = shown();
      const ys = points.flatMap((p) => [p.accuracy - (p.accuracy_spread || 0), p.accuracy + (p.accuracy_spread || 0)]);
      const x = axis(points.map(at), { name: `${name()}, as a share of full training's`, text: (v) => `${brief(v)}×`, from: null, room: 0.12, count: width > 600 ? 8 : 4 });
      x.low = Math.max(0, x.low);
      x.ticks = x.ticks.filter((v) => v >= x.low);
      const y = axis(ys, { name: "accuracy", text: (v) => `${brief(100 * v)} %`, room: 0.08, count: 6 });
      const { svg, px, py, frame } = axes(width, width > 600 ? 380 : 320, x, y);
      const spots = [];
      // A method and its controls cost the same: side by side, so that one does not hide the other.
      const place = (p) => px(at(p)) + ({ "equal-budget": -9, rs2: 9 }[p.role] || 0);
      const budget = line().map((p) => [place(p), py(p.accuracy)]);
      if (budget.length > 1) {
        svg.append(draw("path", { d: path(budget), fill: "none", style: { stroke: "var(--dim)", strokeWidth: 2, strokeDasharray: "6 5" } }));
        if (width > 600) {
          const [[ax, ay], [bx, by]] = budget.slice(-2);
          const angle = Math.atan2(by - ay, bx - ax) * 180 / Math.PI;
          const [mx, my] = [(ax + bx) / 2, (ay + by) / 2];
          if (bx - ax > 190) svg.append(draw("text", { x: mx, y: my - 8, "text-anchor": "middle", transform: `rotate(${angle.toFixed(1)} ${mx} ${my})` }, "plain training at equal budget"));
        }
      }
      for (const curve of study.by_budget || []) {
        const own = points.filter((p) => p.role === "method" && p.method === curve.method).sort((a, b) => at(a) - at(b));
        const to = points.find((p) => p.role === "baseline");
        const spot = [...own, ...(to ? [to] : [])].map((p) => [place(p), py(p.accuracy)]);
        if (own.length) svg.append(draw("path", { class: "curve", d: path(spot), fill: "none", style: { stroke: look.get(own[0].label).colour, strokeWidth: 2 } }));
      }
      for (const p of [...points].sort((a, b) => controlled(b) - controlled(a))) {
        const style = look.get(p.label), cx = place(p), cy = py(p.accuracy);
        const whisker = (x1, y1, x2, y2) => svg.append(draw("line", { x1, y1, x2, y2, style: { stroke: style.colour, strokeWidth: style.solid ? 1.75 : 1.25, opacity: style.solid ? 1 : 0.7 } }));
        if (known(p.accuracy_spread)) {
          const [top, bottom] = [py(p.accuracy + p.accuracy_spread), py(p.accuracy - p.accuracy_spread)];
          whisker(cx, top, cx, bottom); whisker(cx - 4, top, cx + 4, top); whisker(cx - 4, bottom, cx + 4, bottom);
        }
        if (against === "time" && p.time_ratio_spread && !controlled(p)) {
          const [a, b] = [px(p.time_ratio - p.time_ratio_spread), px(p.time_ratio + p.time_ratio_spread)];
          whisker(a, cy, b, cy); whisker(a, cy - 4, a, cy + 4); whisker(b, cy - 4, b, cy + 4);
        }
        svg.append(mark(style.mark, cx, cy, style.solid ? 6 : 4.5, style));
        if (!controlled(p) && width > 480) {
          const over = cx > frame.right - 150;
          const beside = 21 + (against === "time" ? px(at(p) + (p.time_ratio_spread || 0)) - px(at(p)) : 0);
          svg.append(draw("text", { class: "strong", x: cx + (over ? -12 : beside), y: cy + (over ? 20 : 4), "text-anchor": over ? "end" : "start" }, p.label));
        }
        const spread = known(p.accuracy_spread) ? ` ± ${(100 * p.accuracy_spread).toFixed(2)}` : "";
        spots.push({ x: cx, y: cy, text: `${p.label}\n${(100 * p.accuracy).toFixed(2)}${spread} % at ${brief(at(p))}× the ${name()}` });
      }
      tips(plot, svg, spots);
      return svg;
    }
    const chart = figure({
      title: "Accuracy against what it costs",
      words: line().length > 1
        ? "The dashed line is plain training, given less. A method earns its place where it lies above it; error bars are the standard deviation over seeds. A method and its controls stand side by side."
        : "Without equal-budget controls nothing tells whether plain training, given less, would have done as well. Error bars are the standard deviation over seeds.",
      paint,
      before: make("div", { class: "controls" }, choices("against", { cost: "cost", time: "time" }, against, (value) => {
        against = value; chart.refresh(); explain();
      }, study.timed ? {} : { time: "No times: runs were trained at the same time as others." })),
      after: [],
      summary: () => `Accuracy against ${name()}: ` + shown().map((p) => `${p.label} ${(100 * p.accuracy).toFixed(1)} % at ${brief(at(p))} times`).join("; "),
      numbers: () => ({
        columns: ["", `${name()} ratio`, "accuracy, %", "standard deviation", "seeds"],
        rows: shown().map((p) => [p.label, at(p), (100 * p.accuracy).toFixed(2), known(p.accuracy_spread) ? (100 * p.accuracy_spread).toFixed(2) : null, p.n]),
      }),
    });
    const aside = make("p", { class: "dim aside" });
    const untimed = (role) => study.points.some((p) => role(p) && !known(p.time_ratio));
    function explain() {
      const said = study.unit === "time"
        ? untimed(() => true) && "Runs that did not take turns with full training from beginning to end stand at the time that was asked for."
        : untimed(controlled) && "Controls did not take turns with full training; they stand at their cost, which is what plain steps take.";
      aside.textContent = against === "time" && said ? said : "";
    }
    explain();
    const list = make("ul", { class: "legend plain" }, study.points.map((p) => make("li", {}, swatch(look.get(p.label)), p.label)));
    const answers = (study.by_budget || []).map((curve) => make("li", {}, make("strong", {}, curve.method), `: ${curve.answer}.`));
    chart.plot.after(...(answers.length ? [make("p", {}, "What budget keeps the accuracy of full training?"), make("ul", { class: "answers" }, answers)] : []), list, aside);
    return chart.node;
  }

  // -- learning curves --------------------------------------------------------------------------------------------------------

  function curves(study, look) {
    const units = { cost: "cost, in epochs of plain training", seconds: "training time, in seconds" };
    const measures = { test_accuracy: "accuracy", test_loss: "test loss", train_loss: "training loss" };
    const hidden = new Set(study.curves.filter((row) => row.role === "rs2").map((row) => row.label));
    let over = "cost", what = "test_accuracy";
    const shown = () => study.curves.filter((row) => !hidden.has(row.label));
    const text = (value) => (what === "test_accuracy" ? `${brief(100 * value)} %` : brief(value));
    function paint(width, plot) {
      const rows = shown();
      const values = rows.flatMap((row) => [...row[what].low, ...row[what].high]).filter(known);
      const x = axis(rows.flatMap((row) => row[over]), { name: units[over], from: 0, room: 0.01, count: width > 600 ? 8 : 4 });
      const y = axis(values, { name: measures[what], text, log: what !== "test_accuracy" });
      const { svg, px, py } = axes(width, width > 600 ? 380 : 300, x, y);
      const spots = [];
      for (const row of rows) {
        const style = look.get(row.label), at = row[over], told = row[what];
        const there = at.map((_, i) => i).filter((i) => known(told.mean[i]));
        if (row.seeds > 1) {
          const band = [...there.map((i) => [px(at[i]), py(told.high[i])]), ...there.toReversed().map((i) => [px(at[i]), py(told.low[i])])];
          svg.append(draw("path", { d: `${path(band)}Z`, style: { fill: style.colour, opacity: style.solid ? 0.14 : 0.06 } }));
        }
      }
      for (const row of rows) {
        const style = look.get(row.label), at = row[over], told = row[what];
        const line = at.map((_, i) => i).filter((i) => known(told.mean[i])).map((i) => [px(at[i]), py(told.mean[i]), i]);
        if (!line.length) continue;
        svg.append(draw("path", { d: path(line), fill: "none", style: { stroke: style.colour, strokeWidth: style.width, strokeDasharray: style.dash, strokeLinejoin: "round" } }));
        svg.append(mark(style.mark, line.at(-1)[0], line.at(-1)[1], 4.5, style));
        for (const [cx, cy, i] of line) spots.push({ x: cx, y: cy, text: `${row.label}\n${text(told.mean[i])} after ${brief(at[i])} ${over === "cost" ? "epochs' cost" : "s"}` });
      }
      tips(plot, svg, spots);
      return svg;
    }
    const chart = figure({
      title: "Learning curves",
      words: study.curves.some((row) => row.seeds > 1) ? "Means over seeds; the bands reach from the lowest seed to the highest." : "",
      paint,
      before: make("div", { class: "controls" },
        choices("over", { cost: "cost", seconds: "time" }, "cost", (value) => { over = value; chart.refresh(); },
          study.timed ? {} : { seconds: "No times: runs were trained at the same time as others." }),
        choices("show", measures, "test_accuracy", (value) => { what = value; chart.refresh(); })),
      after: legend(study.curves, look, hidden, () => chart.refresh()),
      summary: () => `${measures[what]} over ${units[over]}: ` + shown().map((row) => `${row.label} ends at ${text(row[what].mean.at(-1))} after ${brief(row[over].at(-1))}`).join("; "),
      numbers: () => ({
        columns: ["", units[over], measures[what], "lowest seed", "highest seed"],
        rows: shown().flatMap((row) => row[over].map((value, i) => [row.label, value, row[what].mean[i], row[what].low[i], row[what].high[i]])),
      }),
    });
    return chart.node;
  }

  // -- overhead -----------------------------------------------------------------------------------------------------------------

  function overhead(study, look) {
    const measured = study.overhead.some((row) => known(row.overhead));
    const parts = Object.keys(study.overhead[0].parts);
    const most = Math.max(0.02, ...study.overhead.map((row) => Math.abs(row.overhead || 0)), ...study.overhead.flatMap((row) => Object.values(row.parts)));
    const bar = (value) => {
      if (!known(value)) return make("td", {}, "—");
      const svg = draw("svg", { width: 90, height: 10, "aria-hidden": "true", style: { marginLeft: "8px", verticalAlign: "middle" } });
      const size = 44 * Math.min(1, Math.abs(value) / most);
      svg.append(draw("line", { x1: 45, x2: 45, y1: 0, y2: 10, class: "axis" }));
      svg.append(draw("rect", { x: value < 0 ? 45 - size : 45, y: 1, width: Math.max(1, size), height: 8, style: { fill: value < 0 ? "var(--c3)" : "var(--c2)" } }));
      return make("td", {}, `${value < 0 ? "−" : "+"}${percent(Math.abs(value), 1)}`, svg);
    };
    const head = make("tr", {}, make("th", { scope: "col" }, "method"), measured ? make("th", { scope: "col" }, "overhead") : null,
      parts.map((name) => make("th", { scope: "col" }, name)));
    const rows = study.overhead.map((row) => make("tr", {}, make("th", { scope: "row" }, make("div", { class: "row" }, swatch(look.get(row.label)), row.label)),
      measured ? bar(row.overhead) : null, parts.map((name) => make("td", {}, percent(row.parts[name], 1)))));
    return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Overhead" },
      make("table", { class: "overhead" }, make("thead", {}, head), make("tbody", {}, rows)));
  }

  // -- pictures ------------------------------------------------------------------------------------------------------------------

  /** A rule for a sheet of pictures, so that each page holds it once. */
  function sheetClass(sheet) {
    const name = fresh("sheet");
    const style = make("style", {});
    document.head.append(style);
    if (/^data:image\/(png|jpeg);base64,[A-Za-z0-9+/=]*$/.test(sheet.uri)) style.sheet.insertRule(`.${name}{background-image:url("${sheet.uri}")}`);
    return name;
  }

  function picture(sheet, rule, place, size, label) {
    const [column, row] = [place % sheet.columns, Math.floor(place / sheet.columns)];
    return make("span", {
      class: `picture ${rule}`, role: label ? "img" : null, "aria-label": label, "aria-hidden": label ? null : "true",
      style: {
        width: `${size}px`, height: `${size}px`, backgroundSize: `${sheet.columns * size}px ${sheet.rows * size}px`,
        backgroundPosition: `${-column * size}px ${-row * size}px`,
      },
    });
  }

  /** What the page knows of single examples. */
  function album(study) {
    const examples = study.examples;
    if (!examples) return null;
    const place = new Map(examples.index.map((index, i) => [index, i]));
    const rule = examples.sheet ? sheetClass(examples.sheet) : "";
    const title = (index) => {
      const i = place.get(index);
      return examples.classes && known(i) ? `example ${index}, ${examples.classes[examples.targets[i]]}` : `example ${index}`;
    };
    const show = (index, size, label) => {
      const i = place.get(index);
      if (examples.sheet && known(i)) return picture(examples.sheet, rule, i, size, label);
      return make("span", { class: "picture blank", style: { width: `${size}px`, height: `${size}px` }, role: label ? "img" : null, "aria-label": label }, String(index));
    };
    const className = (index) => (examples.classes && place.has(index) ? examples.classes[examples.targets[place.get(index)]] : null);
    return { examples, place, title, show, className, look: () => {} };
  }

  // -- what a method did, as it reports of itself --------------------------------------------------------------------------------

  function inside(study, book) {
    const section = make("div", {});
    const room = make("div", {});
    const parts = study.inside;
    const name = (part) => `${part.label}, seed ${part.seed}`;
    const show = (part) => {
      const gallery = part.gallery || (parts.find((other) => other.label === part.label && other.gallery) || {}).gallery;
      room.replaceChildren(
        make("div", { class: "grid" }, part.panels.map((panel) => (panel.kind === "shares" ? shares(part, panel) : lines(part, panel)))),
        part.histogram ? histogram(part) : make("p", { class: "note" }, "The run kept no history, so its losses cannot be shown."),
        gallery && book ? composites(gallery, book) : "");
    };
    if (parts.length > 1) {
      const id = fresh("run");
      const select = make("select", { id, on: { change: () => show(parts[Number(select.value)]) } }, parts.map((part, i) => make("option", { value: i }, name(part))));
      section.append(make("div", { class: "controls" }, make("label", { for: id, class: "dim" }, "run"), select));
    }
    section.append(room);
    show(parts[0]);
    return section;
  }

  const PAINT = ["var(--reason1)", "var(--reason2)", "var(--whole)", "var(--c4)", "var(--c5)", "var(--c6)"];

  function shares(part, panel) {
    const kinds = panel.series.map((one, i) => ({ ...one, colour: PAINT[i % PAINT.length] }))
      .filter((one, i) => i === 0 || one.values.some((v) => v > 0));
    const last = part.epochs.length - 1;
    return figure({
      title: panel.title,
      words: panel.words,
      paint: (width, plot) => {
        const x = axis(part.epochs.map((e) => e + 1), { name: "epoch", room: 0, count: width > 500 ? 10 : 5 });
        x.low = part.epochs[0] + 0.5; x.high = part.epochs[last] + 1.5;
        x.ticks = x.ticks.filter((v) => Number.isInteger(v) && v >= 1);
        const y = { name: "of all examples", text: (v) => percent(v), low: 0, high: 1, ticks: [0, 0.25, 0.5, 0.75, 1] };
        const { svg, px, py } = axes(width, 260, x, y);
        const spots = [];
        const step = px(x.low + 1) - px(x.low);
        const size = Math.max(1, step * 0.8);
        part.epochs.forEach((epoch, i) => {
          let sum = 0;
          for (const { values, colour } of kinds) {
            const value = values[i] || 0;
            if (value > 0) svg.append(draw("rect", { x: px(epoch + 1) - size / 2, width: size, y: py(sum + value), height: Math.max(0.75, py(sum) - py(sum + value)), style: { fill: colour } }));
            sum += value;
          }
          spots.push({ x: px(epoch + 1), y: py(sum / 2), text: `epoch ${epoch + 1}\n` + kinds.map(({ label, values }) => `${label}: ${percent(values[i] ?? null, 1)}`).join("\n") });
        });
        tips(plot, svg, spots);
        return svg;
      },
      after: keys(kinds.map(({ colour, label }) => [colour, label])),
      summary: () => `${panel.title}, per epoch. In the last one ${kinds.map(({ label, values }) => `${percent(values[last] ?? null, 1)} ${label}`).join(", ")}.`,
      numbers: () => ({ columns: ["epoch", ...kinds.map(({ label }) => label)], rows: part.epochs.map((e, i) => [String(e + 1), ...kinds.map(({ values }) => percent(values[i] ?? null, 1))]) }),
    }).node;
  }

  function lines(part, panel) {
    const kinds = panel.series.map((one, i) => ({ ...one, colour: ["var(--reason1)", "var(--dim)", "var(--reason2)", ...PAINT.slice(3)][i % PAINT.length], dash: i % 2 ? "6 4" : "" }));
    const some = kinds.some(({ values }) => values.some(known));
    return figure({
      title: panel.title,
      words: some ? panel.words : "No epoch has reported any yet.",
      paint: (width, plot) => {
        const x = axis(part.epochs.map((e) => e + 1), { name: "epoch", room: 0.02, count: width > 500 ? 10 : 5 });
        x.ticks = x.ticks.filter((v) => Number.isInteger(v) && v >= 1);
        const y = axis(kinds.flatMap(({ values }) => values).filter(known), { name: "value", from: 0 });
        const { svg, px, py, frame } = axes(width, 260, x, y);
        const spots = [];
        for (const { name, values, colour, dash } of kinds) {
          const line = part.epochs.map((e, i) => [e, values[i]]).filter(([, v]) => known(v)).map(([e, v]) => [px(e + 1), py(v), e, v]);
          if (!line.length) continue;
          svg.append(draw("path", { d: path(line), fill: "none", style: { stroke: colour, strokeWidth: 2.25, strokeDasharray: dash } }));
          const [ex, ey] = line.at(-1);
          svg.append(draw("text", { class: "strong", x: Math.min(ex, frame.right), y: ey - 7, "text-anchor": "end" }, name));
          for (const [cx, cy, e, v] of line) spots.push({ x: cx, y: cy, text: `${name} ${brief(v)}\nepoch ${e + 1}` });
        }
        tips(plot, svg, spots);
        return svg;
      },
      after: keys(kinds.map(({ name, label, colour }) => [colour, `${name}: ${label}`])),
      summary: () => `${panel.title} over the epochs; at the end ${kinds.map(({ name, values }) => `${name} ${brief(values.findLast(known))}`).join(", ")}.`,
      numbers: () => ({ columns: ["epoch", ...kinds.map(({ name }) => name)], rows: part.epochs.map((e, i) => [String(e + 1), ...kinds.map(({ values }) => values[i])]) }),
    }).node;
  }

  function histogram(part) {
    const told = part.histogram;
    const kinds = [["right", "unmixed, recognised", "var(--right)"], ["wrong", "unmixed, not recognised", "var(--wrong)"], ["mixed", "mixed", "var(--mixed)"]];
    const most = () => Math.max(1, ...told.right[now].map((_, i) => kinds.reduce((sum, [key]) => sum + told[key][now][i], 0)));
    let now = told.thresholds.findLastIndex((limits) => limits.some(known));
    if (now < 0) now = told.epochs.length - 1;
    const id = fresh("epoch");
    const total = (key) => told[key][now].reduce((sum, n) => sum + n, 0);
    const output = make("output", { for: id });
    const slider = make("input", { id, type: "range", min: 0, max: told.epochs.length - 1, step: 1, value: now });
    const announce = () => {
      const limits = told.thresholds[now];
      slider.setAttribute("aria-valuetext", `epoch ${told.epochs[now] + 1}`);
      output.textContent = `${told.epochs[now] + 1} of ${part.epochs.at(-1) + 1}` + (!told.marks.length || limits.some(known) ? "" : " — judged by no thresholds");
    };
    slider.addEventListener("input", () => { now = Number(slider.value); announce(); chart.refresh(); });
    announce();
    const chart = figure({
      title: "Losses of an epoch",
      words: `Every example's loss, on a logarithmic axis${told.marks.length ? ", with the thresholds by which it was judged for the next epoch" : ""}. Losses of mixed examples are counted apart, as they cannot be compared with the others.`,
      before: make("div", { class: "controls" }, make("label", { for: id }, "epoch"), slider, output),
      paint: (width, plot) => {
        const [low, high] = [told.edges[0], told.edges.at(-1)];
        const x = { name: "loss", text: brief, log: true, low, high, ticks: logTicks(low, high) };
        const y = axis([0, most()], { name: "examples", from: 0, text: (v) => v.toLocaleString("en") });
        const { svg, px, py, frame } = axes(width, width > 600 ? 330 : 280, x, y);
        const spots = [];
        for (let i = 0; i + 1 < told.edges.length; i++) {
          let sum = 0;
          const [a, b] = [px(told.edges[i]), px(told.edges[i + 1])];
          for (const [key, , colour] of kinds) {
            const count = told[key][now][i];
            if (count) svg.append(draw("rect", { x: a + 0.5, width: Math.max(1, b - a - 1), y: py(sum + count), height: py(sum) - py(sum + count), style: { fill: colour } }));
            sum += count;
          }
          if (sum) spots.push({ x: (a + b) / 2, y: py(sum), text: `loss ${brief(told.edges[i])} to ${brief(told.edges[i + 1])}\n` + kinds.map(([key, text]) => `${text}: ${told[key][now][i]}`).join("\n") });
        }
        const middle = told.marks.length - 1;
        told.thresholds[now].forEach((value, i) => {
          if (!known(value)) return;
          const at = px(Math.min(high, Math.max(low, value)));
          svg.append(draw("line", { x1: at, x2: at, y1: frame.top - 2, y2: frame.bottom, style: { stroke: "var(--ink)", strokeWidth: 1.5, strokeDasharray: i % 2 ? "5 4" : "" } }));
          svg.append(draw("text", { class: "strong", x: at + (i && i === middle ? 5 : -5), y: frame.top + 8 + 15 * (i % 2), "text-anchor": i && i === middle ? "start" : "end" }, told.marks[i]));
        });
        tips(plot, svg, spots);
        return svg;
      },
      after: keys(kinds.map(([, text, colour]) => [colour, text])),
      summary: () => `Losses of epoch ${told.epochs[now] + 1}: ${kinds.map(([key, text]) => `${total(key)} ${text}`).join(", ")}${told.marks.map((name, i) => `; ${name} ${brief(told.thresholds[now][i])}`).join("")}.`,
      numbers: () => ({
        columns: ["loss from", "to", ...kinds.map(([, text]) => text)],
        rows: told.edges.slice(0, -1).map((edge, i) => [brief(edge), told.edges[i + 1], ...kinds.map(([key]) => String(told[key][now][i]))]),
      }),
    });
    chart.node.classList.add("losses");
    return chart.node;
  }

  function composites(gallery, book) {
    const rule = sheetClass(gallery.sheet);
    const side = 128;
    return make("figure", {},
      make("figcaption", {}, make("h3", {}, "Composites"),
        make("p", {}, `Made by the run's own mixer (${gallery.mixer}) from examples it mixed; the pairs are drawn anew. The dashed border is where one ends and the other begins.`)),
      make("ul", { class: "gallery" }, gallery.items.map((parts, i) => make("li", {},
        picture(gallery.sheet, rule, i, side, `Composite of ${parts.map((p) => `${book.title(p.index)}, ${percent(p.share)}`).join(" and ")}`),
        make("div", { class: "made", "aria-hidden": "true" }, parts.map((p) =>
          make("span", {}, book.show(p.index, 28), make("span", {}, `${book.className(p.index) ?? p.index}, ${percent(p.share)}`))))))));
  }

  // -- use of the examples -----------------------------------------------------------------------------------------------------------

  function use(part, book) {
    const verb = part.what === "trained" ? "trained on" : "mixed";
    const strip = (title, items) => [make("h3", {}, title), make("ul", { class: "strip" }, items.map((item) => make("li", {},
      make("button", { type: "button", "aria-label": `${book.title(item.index)}, ${verb} in ${item.count} of ${part.epochs} epochs; look it up`, on: { click: () => book.look(item.index, true) } },
        book.show(item.index, 40), make("small", { "aria-hidden": "true" }, `${item.count}×`)))))];
    const most = part.classes ? Math.max(...part.classes.map((c) => c.share)) : 0;
    const some = part.classes && part.all_classes > part.classes.length ? ` The ${part.classes.length / 2} most and least of ${part.all_classes} classes.` : "";
    return make("div", { class: "grid use" },
      make("figure", {}, make("figcaption", {}, make("h3", {}, part.label), make("p", {}, `In how many of ${part.epochs} epochs an example was ${verb}, seed ${part.seed}.`)),
        strip(`Most often ${verb}`, part.most), strip(`Least often ${verb}`, part.least)),
      part.classes ? make("figure", {}, make("figcaption", {}, make("h3", {}, `Use by class: ${part.label}`), make("p", {}, `Share of the epochs in which an example of the class was ${verb}, on average.${some}`)),
        make("ul", { class: "bars" }, part.classes.map((c) => make("li", {}, make("span", { class: "name", title: c.name }, c.name),
          make("span", { class: "track", "aria-hidden": "true" }, make("span", { class: "fill", style: { width: `${(100 * c.share / (most || 1)).toFixed(1)}%` } })),
          make("span", { class: "value" }, percent(c.share, 1)))))) : null);
  }

  // -- one example ---------------------------------------------------------------------------------------------------------------------

  function explorer(book, look) {
    const { examples } = book;
    const number = fresh("index"), group = fresh("class");
    const input = make("input", { id: number, type: "number", min: 0, max: examples.total - 1, step: 1, inputmode: "numeric" });
    const thumbs = make("div", { class: "thumbs", role: "group", "aria-label": "Examples" });
    const pane = make("div", { class: "one", tabindex: -1 });
    const message = make("p", { class: "dim", role: "status" });
    const hardest = examples.index[examples.mean_loss.indexOf(Math.max(...examples.mean_loss))];
    let current = hardest;
    const classes = examples.classes ? [...new Set(examples.targets)].sort((a, b) => a - b) : [];
    const select = make("select", { id: group }, make("option", { value: "" }, `all ${examples.index.length} on this page`),
      classes.map((c) => make("option", { value: c }, examples.classes[c])));
    function list() {
      const wanted = examples.index.filter((_, i) => select.value === "" || examples.targets[i] === Number(select.value));
      thumbs.replaceChildren(...wanted.map((index) => make("button", { type: "button", title: book.title(index), "data-index": index, "aria-pressed": String(index === current), "aria-label": book.title(index), on: { click: () => look_up(index) } }, book.show(index, 36))));
      return wanted;
    }
    function look_up(index, jump) {
      if (!book.place.has(index)) {
        const near = examples.index.reduce((a, b) => (Math.abs(b - index) < Math.abs(a - index) ? b : a));
        const there = Number.isInteger(index) && index >= 0 && index < examples.total;
        message.textContent = there
          ? `Example ${index} is not among the ${examples.index.length} of ${examples.total.toLocaleString("en")} that this page keeps; the nearest one is ${near}.`
          : `There is no such example; indices go from 0 to ${examples.total - 1}.`;
        return;
      }
      current = index;
      message.textContent = "";
      input.value = index;
      for (const button of thumbs.children) button.setAttribute("aria-pressed", String(Number(button.dataset.index) === index));
      pane.replaceChildren(...oneExample(book, look, index));
      if (jump) { pane.closest("section").scrollIntoView(); pane.focus({ preventScroll: true }); }
      say(`Showing ${book.title(index)}`);
    }
    book.look = look_up;
    select.addEventListener("change", () => { const wanted = list(); if (wanted.length && !wanted.includes(current)) look_up(wanted[0]); });
    const form = make("form", { class: "field", novalidate: true, on: { submit: (event) => { event.preventDefault(); look_up(input.value === "" ? NaN : Number(input.value)); } } },
      make("label", { for: number }, "index"), input, make("button", { type: "submit" }, "Look up"));
    list();
    look_up(hardest);
    say("");
    return make("div", { class: "explorer" },
      make("div", {}, form, classes.length ? make("div", { class: "field" }, make("label", { for: group }, "class"), select) : null, message, thumbs), pane);
  }

  function oneExample(book, look, index) {
    const { examples } = book;
    const i = book.place.get(index);
    const rows = examples.histories;
    const facts = [["index", String(index)], examples.classes ? ["class", examples.classes[examples.targets[i]]] : null, examples.names ? ["file", examples.names[i]] : null,
      [`mean loss, ${rows[0].label}`, brief(examples.mean_loss[i])]].filter(Boolean);
    const chart = figure({
      title: "Its loss over the epochs",
      words: "Filled marks: trained whole; hollow: mixed; a gap: not trained on.",
      paint: (width, plot) => {
        const x = axis(rows.flatMap((row) => row.epochs.map((e) => e + 1)), { name: "epoch", room: 0.01, count: width > 500 ? 10 : 5 });
        x.ticks = x.ticks.filter((v) => Number.isInteger(v) && v >= 1);
        const y = axis(rows.flatMap((row) => row.loss[i]).filter(known), { name: "loss", from: 0, room: 0.05 });
        const { svg, px, py } = axes(width, 250, x, y);
        const spots = [];
        for (const row of rows) {
          const style = look.get(row.label);
          let piece = [];
          const flush = () => { if (piece.length > 1) svg.append(draw("path", { d: path(piece), fill: "none", style: { stroke: style.colour, strokeWidth: style.width, strokeDasharray: style.dash } })); piece = []; };
          const marks = [];
          row.epochs.forEach((epoch, e) => {
            const value = row.loss[i][e];
            if (!known(value)) return flush();
            const at = [px(epoch + 1), py(value)];
            piece.push(at);
            const state = row.state[i][e];
            marks.push(mark(style.mark, at[0], at[1], row.epochs.length > 60 ? 2 : 3.5, { ...style, solid: row.states[state].look === "whole" }));
            spots.push({ x: at[0], y: at[1], text: `${row.label}, epoch ${epoch + 1}\nloss ${brief(value)}, ${row.correct[i][e] === "1" ? "recognised" : "not recognised"}\n${row.states[state].label}` });
          });
          flush();
          svg.append(...marks);
        }
        tips(plot, svg, spots);
        return svg;
      },
      after: make("ul", { class: "legend plain" }, rows.map((row) => make("li", {}, swatch(look.get(row.label), true), row.label))),
      summary: () => `Loss of example ${index}: ` + rows.map((row) => `${row.label} ends at ${brief(row.loss[i].findLast(known))}`).join("; "),
      numbers: () => ({
        columns: ["epoch", ...rows.flatMap((row) => [`${row.label}: loss`, "what happened"])],
        rows: [...new Set(rows.flatMap((row) => row.epochs))].sort((a, b) => a - b).map((epoch) => [String(epoch + 1), ...rows.flatMap((row) => {
          const e = row.epochs.indexOf(epoch);
          return e < 0 ? [null, null] : [row.loss[i][e], row.states[row.state[i][e]].label];
        })]),
      }),
    });
    const used = new Map(rows.flatMap((row) => [...row.state[i]].map((s) => [row.states[s].label, row.states[s]])));
    return [
      make("div", { class: "who" }, book.show(index, 112, `Picture of ${book.title(index)}`), make("dl", {}, facts.map(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]))),
      chart.node,
      make("figure", {}, make("figcaption", {}, make("h3", {}, "When it was mixed or skipped"), make("p", {}, "An epoch a column. Tall: trained whole; in two halves: mixed; a thin line: not trained on.")),
        make("ul", { class: "told" }, rows.map((row) => make("li", {}, make("div", {}, swatch(look.get(row.label)), `${row.label}: `, tally(row, i)), strip(row, i)))),
        keys([...used.values()].filter((state) => state.look !== "none").map((state) => [`var(--${state.colour})`, state.label]))),
    ];
  }

  function tally(row, i) {
    const count = (state) => [...row.state[i]].filter((other) => other === state).length;
    const last = row.loss[i].findLastIndex(known);
    const told = Object.entries(row.states).filter(([state]) => count(state)).map(([state, { label }]) => `${label} ${count(state)}×`).join(", ");
    return last < 0 ? told : `${told}; ${row.correct[i][last] === "1" ? "recognised" : "not recognised"} the last time`;
  }

  function strip(row, i) {
    const states = [...row.state[i]];
    const svg = draw("svg", { width: "100%", height: 22, viewBox: `0 0 ${states.length * 10} 22`, preserveAspectRatio: "none", "aria-hidden": "true", style: { display: "block", maxWidth: `${states.length * 16}px` } });
    states.forEach((state, e) => {
      const { look, colour: paint } = row.states[state];
      const colour = `var(--${paint})`;
      const rect = (y, height) => svg.append(draw("rect", { x: e * 10 + 1, y, width: 8, height, style: { fill: colour } }));
      if (look === "none") svg.append(draw("rect", { x: e * 10 + 1, y: 10, width: 8, height: 2, style: { fill: "var(--dim)" } }));
      else if (look === "skipped") rect(10, 2);
      else if (look === "whole") rect(1, 20);
      else { rect(1, 9); rect(12, 9); }
    });
    return svg;
  }

  // -- settings ---------------------------------------------------------------------------------------------------------------------------

  function pairs(title, items) {
    return [make("h3", {}, title), make("dl", { class: "pairs" }, items.map((item) => make("div", {}, make("dt", {}, item.name), make("dd", {}, item.value))))];
  }

  /** A command whose words are not cut at their hyphens. */
  const spelled = (text) => text.split(/([ \n])/).map((word) => (/^[ \n]?$/.test(word) ? word : make("span", {}, word)));

  // -- the page -----------------------------------------------------------------------------------------------------------------------------

  function article(study, contents) {
    const look = looks(study);
    const book = album(study);
    const node = make("article", {}, make("h1", { id: fresh("study") }, study.title), make("ul", { class: "facts" }, study.facts.map((fact) => make("li", {}, fact))));
    const part = (title, words, ...children) => {
      const id = fresh("part");
      node.append(make("section", { "aria-labelledby": id }, make("h2", { id }, title), words ? make("p", { class: "dim" }, words) : null, children));
      contents.push([id, title]);
    };
    const top = [];
    if (study.advice) top.push(make("p", { class: "advice" }, study.advice));
    if (study.verdicts.length) {
      const spoken = { good: "✓ worth it", bad: "✗ not worth it", open: "? not settled" };
      top.push(make("ul", { class: "verdicts" }, study.verdicts.map((verdict) => make("li", { class: `verdict ${verdict.standing}` },
        make("h3", {}, verdict.label, make("span", { class: "standing" }, spoken[verdict.standing])), make("p", {}, verdict.text || "nothing to say yet"),
        make("dl", {}, verdict.numbers.map((n) => make("div", {}, make("dt", {}, n.name), make("dd", {}, n.text))))))));
    }
    top.push(sortable(study, look));
    if (study.kind === "comparison") top.push(make("p", { class: "dim" }, `Accuracies within ${study.margin} points count as the same. ${study.pooled.length ? `Intervals rest on how much the runs of ${study.pooled.length} rows spread, which is alike; other rows keep their own spread. ` : ""}Click a heading to sort.`));
    for (const { name, reason } of [...study.failures, ...study.about]) top.push(make("p", { class: "note" }, `${name}: ${reason}`));
    for (const text of study.notes) top.push(make("p", { class: "note" }, text));
    part(study.kind === "comparison" ? "Verdict" : "Result", "", top);
    if (study.points.length) part("Is it worth it?", "", decision(study, look));
    if (study.curves.length) part("Curves", "", curves(study, look));
    if (study.overhead.length) part("Overhead", study.kind === "comparison"
      ? "Overhead is the time beyond what the cost explains; the parts are shares of the training time." : "Shares of the training time.", overhead(study, look));
    if (study.inside.length) part("Inside", "What each method did, and why, as it reports itself.", inside(study, book));
    if (study.use.length) part("Use", "Which examples a method prefers.", study.use.map((one) => use(one, book)));
    if (book) part("Examples", `${book.examples.index.length} of ${book.examples.total.toLocaleString("en")} examples: the most and the least used, the hardest and the easiest, and some of every class.`, explorer(book, look));
    part("Settings", "", make("h3", {}, "Made by"), make("pre", {}, spelled(study.command)),
      pairs("Hardware", study.hardware), pairs("Versions", study.versions), pairs("Every setting", study.settings));
    return node;
  }

  function themes() {
    const root = document.documentElement, button = document.getElementById("theme");
    const wanted = matchMedia("(prefers-color-scheme: dark)");
    let chosen = false;
    const set = (dark) => { root.dataset.theme = dark ? "dark" : "light"; button.textContent = dark ? "Light theme" : "Dark theme"; };
    set(wanted.matches);
    wanted.addEventListener("change", () => { if (!chosen) set(wanted.matches); });
    button.addEventListener("click", () => { chosen = true; set(root.dataset.theme !== "dark"); });
  }

  themes();
  const main = document.getElementById("main");
  const contents = [];
  const several = content.studies.length > 1;
  main.replaceChildren(...content.studies.map((study) => {
    const node = article(study, several ? [] : contents);
    if (several) contents.push([node.querySelector("h1").id, study.title]);
    return node;
  }));
  document.title = `${content.studies[0].title} – leantrain report`;
  document.getElementById("contents").append(...contents.map(([id, title]) => make("a", { href: `#${id}` }, title)));
})();
