"use strict";
// Draws the page's charts, sorts its tables, and follows a job that is still running.
(() => {
  const config = {
    background: null, font: "system-ui, sans-serif",
    axis: {labelColor: "currentColor", titleColor: "currentColor", domainColor: "currentColor",
      tickColor: "currentColor", gridColor: "currentColor", gridOpacity: 0.15, labelFontSize: 11, titleFontSize: 12},
    legend: {labelColor: "currentColor", titleColor: "currentColor", labelFontSize: 11},
    text: {color: "currentColor"}, title: {color: "currentColor"}, view: {stroke: null},
  };
  const main = document.querySelector("main");
  const drawn = new Map(); // name of a chart -> its view, and what it shows; `frame`: all but the data

  function chosen(name) {
    const select = [...document.querySelectorAll("select")].find(one => one.dataset.charts.split(" ").includes(name));
    return select ? select.value : undefined;
  }

  async function draw(name, spec) {
    const {data, ...rest} = spec;
    const frame = JSON.stringify(rest);
    const known = drawn.get(name), place = document.getElementById(name);
    if (known && known.frame === frame && known.place === place) {
      if (known.data === JSON.stringify(data)) return;
      known.data = JSON.stringify(data);
      await known.view.data("rows", structuredClone(data.values)).runAsync();
      return;
    }
    if (known) known.view.finalize();
    const options = {renderer: "svg", actions: false, ast: true, config, mode: "vega-lite"};
    const {view} = await vegaEmbed(place, structuredClone(spec), options);
    drawn.set(name, {frame, data: JSON.stringify(data), place, view});
    const shown = chosen(name);
    if (shown !== undefined && view.signal("shown") !== shown) await view.signal("shown", shown).runAsync();
  }

  async function drawAll(charts) {
    for (const [name, spec] of Object.entries(charts)) await draw(name, spec);
    document.body.dataset.drawn = Object.keys(charts).length;
  }

  main.addEventListener("change", event => {
    const names = event.target.dataset.charts;
    if (names === undefined) return;
    for (const name of names.split(" ")) drawn.get(name)?.view.signal("shown", event.target.value).runAsync();
  });

  // -- tables ------------------------------------------------------------------------------------------------

  function sort(header, order) {
    const table = header.closest("table"), column = header.cellIndex, sign = order === "ascending" ? 1 : -1;
    for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", order);
    const numeric = cell => cell.dataset.value !== undefined;
    const body = table.tBodies[0];
    const rows = [...body.rows].sort((one, two) => {
      const [a, b] = [one.cells[column], two.cells[column]];
      if (!numeric(a) || !numeric(b)) return sign * a.textContent.localeCompare(b.textContent);
      if (a.dataset.value === "" || b.dataset.value === "") return (a.dataset.value === "") - (b.dataset.value === "");
      return sign * (Number(a.dataset.value) - Number(b.dataset.value));
    });
    body.append(...rows);
  }

  main.addEventListener("click", event => {
    const header = event.target.closest("th");
    if (!header) return;
    const first = header.closest("table").tBodies[0].rows[0]?.cells[header.cellIndex].dataset.value !== undefined
      ? "descending" : "ascending";
    const other = first === "ascending" ? "descending" : "ascending";
    sort(header, header.getAttribute("aria-sort") === first ? other : first);
  });

  // -- a running job -----------------------------------------------------------------------------------------

  const shown = new Map(); // HTML of a block, as the server sent it -> its element

  function made(html) {
    const holder = document.createElement("template");
    holder.innerHTML = html;
    return holder.content.firstElementChild;
  }

  function sorted(element, before) { // as the user sorted the table that stood there
    const column = [...(before?.querySelectorAll("th") ?? [])].findIndex(header => header.hasAttribute("aria-sort"));
    if (column < 0) return;
    const header = element.querySelectorAll("th")[column];
    if (header) sort(header, before.querySelectorAll("th")[column].getAttribute("aria-sort"));
  }

  async function show({blocks, charts}) {
    const before = [...main.children];
    blocks.forEach((html, position) => {
      if (shown.has(html)) return;
      const element = made(html), old = before[position];
      shown.set(html, element);
      if (old && old.tagName === element.tagName) sorted(element, old);
    });
    for (const html of shown.keys()) if (!blocks.includes(html)) shown.delete(html);
    const elements = blocks.map(html => shown.get(html));
    if (elements.length !== before.length || elements.some((element, position) => element !== before[position]))
      main.replaceChildren(...elements);
    await drawAll(charts);
  }

  const live = document.body.dataset.live;
  const ready = drawAll(JSON.parse(document.getElementById("charts").textContent));
  if (live) {
    let turn = ready;
    const source = new EventSource(live);
    source.addEventListener("message", event => { turn = turn.then(() => show(JSON.parse(event.data))).catch(console.error); });
    source.addEventListener("end", () => source.close());
  }
})();
