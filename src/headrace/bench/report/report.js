"use strict";
(() => {
  // By name, the figures of a plot: one, or one a round. A colour in them is a role of the style sheet.
  const plots = JSON.parse(document.getElementById("plots").textContent);
  const root = document.documentElement;
  const MARGIN = { l: 64, r: 16, t: 22, b: 44 };
  const PRINTED_WIDTH = 680;
  const LABEL = { x: 54, y: 24 }; // pixels that a tick label needs, with the room beside it
  let round = 0;

  const role = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();

  function colour(value) {
    const [name, opacity] = value.slice(1).split("/");
    const found = role(name);
    if (!opacity || !/^#[0-9a-f]{6}$/i.test(found)) return found;
    const parts = [1, 3, 5].map((at) => parseInt(found.slice(at, at + 2), 16));
    return `rgba(${parts.join(", ")}, ${opacity})`;
  }

  // A copy of a figure with its roles resolved. Columns of numbers are shared; ranges are not, for a zoom writes there.
  function themed(value, key) {
    if (Array.isArray(value)) {
      if (key === "customdata" || value.length > 50) return value;
      return value.map((each) => themed(each));
    }
    if (value !== null && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, themed(each, name)]));
    }
    return typeof value === "string" && value[0] === "@" && /color$/.test(key || "") ? colour(value) : value;
  }

  function seconds(value) {
    const [scale, unit] = value < 0.9995e-3 ? [1e6, "µs"] : value < 0.9995 ? [1e3, "ms"] : [1, "s"];
    return `${Number((value * scale).toPrecision(4))} ${unit}`;
  }

  // Ticks of a logarithmic axis: as many round values as have room for their labels.
  function ticks(kind, [from, to], pixels, room) {
    const apart = (a, b) => (pixels * Math.log10(b / a)) / (to - from);
    const inside = (values) => values.filter((value) => value >= 10 ** from && value <= 10 ** to);
    const candidates = [];
    if (to - from < 0.5) {
      for (const pieces of [10, 8, 6, 5, 4, 3, 2]) {
        const raw = (10 ** to - 10 ** from) / pieces;
        const decade = 10 ** Math.floor(Math.log10(raw));
        const step = [1, 2, 5, 10].map((each) => each * decade).find((each) => each >= raw * 0.999);
        const first = Math.ceil(10 ** from / step);
        candidates.push(Array.from({ length: 24 }, (_, index) => Number(((first + index) * step).toPrecision(12))));
      }
    }
    const decades = Array.from({ length: Math.ceil(to) - Math.floor(from) + 1 }, (_, index) => Math.floor(from) + index);
    for (const steps of [[1, 2, 3, 5, 7], [1, 2, 5], [1, 3], [1]]) {
      candidates.push(decades.flatMap((power) => steps.map((step) => Number(`${step}e${power}`))));
    }
    for (const skip of [2, 3, 4]) candidates.push(decades.filter((power) => power % skip === 0).map((power) => 10 ** power));
    const fitting = candidates.map(inside).find(
      (values) => values.length > 1 && values.every((value, at) => at === 0 || apart(values[at - 1], value) >= room),
    );
    const tickvals = fitting || inside(candidates[0]).slice(0, 1);
    const label = kind === "seconds" ? seconds : (value) => String(Number(value.toPrecision(4)));
    return { tickmode: "array", tickvals, ticktext: tickvals.map(label) };
  }

  function axisTicks(figure, name, range, width) {
    const kind = (figure.layout.meta.ticks || {})[name];
    const upright = name === "yaxis";
    const pixels = upright ? figure.layout.height - MARGIN.t - MARGIN.b : width - MARGIN.l - MARGIN.r;
    return kind ? ticks(kind, range, pixels, upright ? LABEL.y : LABEL.x) : {};
  }

  function template() {
    const axis = {
      gridcolor: role("grid"), linecolor: role("line"), tickcolor: role("line"), ticklen: 4,
      zeroline: false, showline: true, ticks: "outside", title: { standoff: 8, font: { size: 12 } },
    };
    const font = { family: getComputedStyle(document.body).fontFamily, size: 12, color: role("ink") };
    const hoverlabel = { bgcolor: role("card"), bordercolor: role("muted"), font, align: "left", namelength: -1 };
    const clear = "rgba(0, 0, 0, 0)";
    const modebar = { bgcolor: clear, color: role("muted"), activecolor: role("ink") };
    const yaxis = { ...axis, showline: false, ticks: "" };
    return { layout: { font, xaxis: axis, yaxis, hoverlabel, modebar, paper_bgcolor: clear, plot_bgcolor: clear } };
  }

  function layout(figure, place, printed) {
    const width = printed || place.clientWidth;
    const drawn = { template: template(), width, separators: ".,", ...themed(figure.layout) };
    drawn.margin = { ...MARGIN, ...drawn.margin };
    drawn.dragmode = matchMedia("(pointer: coarse)").matches ? false : "zoom";
    for (const name of ["xaxis", "yaxis"]) Object.assign(drawn[name], axisTicks(figure, name, drawn[name].range, width));
    return drawn;
  }

  const config = {
    displaylogo: false, showTips: false, doubleClick: "reset",
    displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false,
    modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]],
    toImageButtonOptions: { format: "svg", filename: "headrace" },
  };

  const figureOf = (place) => {
    const figures = plots[place.dataset.plot];
    return figures.length > 1 ? figures[round] : figures[0];
  };

  function draw(printed) {
    for (const place of document.querySelectorAll("[data-plot]")) {
      const figure = figureOf(place);
      place.closest("figure").hidden = !figure;
      if (!figure) continue;
      Plotly.react(place, themed(figure.data), layout(figure, place, printed), config);
      follow(place);
    }
  }

  const followed = new WeakSet();

  // After a zoom: ticks for the new range, and the same stretch of time in the plots beside it.
  function follow(place) {
    if (followed.has(place)) return;
    followed.add(place);
    place.on("plotly_relayout", (change) => {
      const changes = {};
      for (const name of ["xaxis", "yaxis"]) {
        const zoomed = [`${name}.range`, `${name}.range[0]`, `${name}.autorange`].some((key) => key in change);
        if (!zoomed) continue;
        const found = axisTicks(figureOf(place), name, place.layout[name].range, place.clientWidth);
        for (const [key, value] of Object.entries(found)) changes[`${name}.${key}`] = value;
      }
      if (Object.keys(changes).length) Plotly.relayout(place, changes);
      if (!place.dataset.time || !Object.keys(change).some((key) => key.startsWith("xaxis.range"))) return;
      const range = place.layout.xaxis.range;
      for (const other of document.querySelectorAll(`[data-time="${place.dataset.time}"]`)) {
        const shown = other.layout && other.layout.xaxis.range;
        // Those that show it already do not pass it on, so that this comes to an end.
        if (shown && (shown[0] !== range[0] || shown[1] !== range[1])) Plotly.relayout(other, { "xaxis.range": [...range] });
      }
    });
  }

  function choose(index) {
    round = index;
    for (const panel of document.querySelectorAll("[data-round]")) panel.hidden = Number(panel.dataset.round) !== index;
    draw();
  }

  function copy(button) {
    const source = document.getElementById("description");
    const select = () => {
      getSelection().selectAllChildren(source);
      button.textContent = "Selected: press Ctrl+C";
    };
    if (!navigator.clipboard) return select();
    navigator.clipboard.writeText(source.textContent).then(() => { button.textContent = "Copied"; }, select);
  }

  const selector = document.getElementById("round");
  if (selector) selector.addEventListener("change", () => choose(Number(selector.value)));
  const button = document.getElementById("copy");
  if (button) button.addEventListener("click", () => copy(button));
  choose(selector ? Number(selector.value) : 0);

  let width = root.clientWidth;
  let later = 0;
  addEventListener("resize", () => {
    clearTimeout(later);
    later = setTimeout(() => {
      if (root.clientWidth !== width) draw();
      width = root.clientWidth;
    }, 120);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw());
  addEventListener("beforeprint", () => { root.classList.add("printing"); draw(PRINTED_WIDTH); });
  addEventListener("afterprint", () => { root.classList.remove("printing"); draw(); });
})();
