"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const rows = [...document.querySelectorAll(".row")];
  const texts = rows.map((row, at) => (row.firstElementChild.textContent + " " + data.words[at]).toLowerCase());
  const find = document.getElementById("find"), clear = document.getElementById("clear"), count = document.getElementById("count");
  const choices = [...document.querySelectorAll("select[data-column]")];
  const cause = document.getElementById("cause"), none = document.getElementById("none");
  let only = "", unpacked = {}, minis = [];

  document.documentElement.classList.add("script");

  async function cards(pack) {
    const bytes = Uint8Array.from(atob(data.packs[pack]), sign => sign.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    return (await new Response(stream).text()).split("\0");
  }

  async function fill(row) {
    const at = rows.indexOf(row), pack = Math.floor(at / data.per);
    if (row.dataset.filled) return;
    row.dataset.filled = "1";
    const inner = document.createElement("template");
    inner.innerHTML = (await (unpacked[pack] ??= cards(pack)))[at % data.per];
    row.append(inner.content);
  }

  function filter() {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const chosen = choices.filter(one => one.value !== "").map(one => [Number(one.dataset.column), Number(one.value)]);
    const among = only && new Set(data.causes[only]);
    let shown = 0;
    rows.forEach((row, at) => {
      const fits = (!among || among.has(at)) && chosen.every(([column, value]) => data.values[at][column].includes(value))
        && words.every(word => texts[at].includes(word));
      if (row.hidden === fits) row.hidden = !fits;
      if (minis[at]) minis[at].classList.toggle("out", !fits);
      shown += fits;
    });
    count.textContent = shown === rows.length ? `${rows.length} machines` : `${shown} of ${rows.length} machines`;
    none.hidden = shown > 0;
    clear.hidden = shown === rows.length && !words.length && !chosen.length && !only;
    cause.hidden = !only;
    keep();
  }

  function pick(id, title) {
    only = id;
    cause.textContent = title;
    filter();
  }

  function keep() {
    const state = {find: find.value, only, title: cause.textContent, values: choices.map(one => one.value)};
    try { sessionStorage.setItem(location.pathname, JSON.stringify(state)); } catch { /* a browser that keeps nothing */ }
  }

  function again() {
    try {
      const state = JSON.parse(sessionStorage.getItem(location.pathname) || "{}");
      find.value = state.find || "";
      choices.forEach((one, at) => { one.value = (state.values || [])[at] || ""; if (one.selectedIndex < 0) one.value = ""; });
      if (state.only in data.causes) { only = state.only; cause.textContent = state.title; }
    } catch { /* as above */ }
  }

  function draw() {
    const map = document.getElementById("minis"), show = Math.max(0, data.shows.findIndex(name => document.getElementById("show-" + name).checked));
    map.className = "minis " + data.shows[show];
    if (!minis.length) {
      minis = rows.map((row, at) => {
        const one = document.createElement("a");
        one.href = "#" + row.id;
        one.tabIndex = -1;
        one.title = row.firstElementChild.textContent.replace(/\s+/g, " ").trim();
        one.className = row.dataset.verdict;
        for (const gpu of data.gpus[at].split(" ").filter(Boolean)) {
          const cell = document.createElement("i");
          if (gpu[0] === "f" || gpu[0] === "u" || gpu[0] === "w") cell.className = {f: "fail", u: "unknown", w: "warn"}[gpu[0]];
          one.append(cell);
        }
        return one;
      });
      map.append(...minis);
    }
    minis.forEach((one, at) => data.gpus[at].split(" ").filter(Boolean).forEach((gpu, number) => {
      const share = gpu[1 + show];
      one.children[number].style.setProperty("--heat", share === "-" ? "0%" : Math.round(parseInt(share, 36) * 100 / 35) + "%");
      one.children[number].classList.toggle("none", share === "-");
    }));
  }

  function target() {
    const row = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    if (!row || !row.classList.contains("row")) return;
    row.hidden = false;
    row.open = true;
    row.scrollIntoView({block: "center"});
    row.firstElementChild.focus({preventScroll: true});
  }

  rows.forEach(row => row.addEventListener("toggle", () => { if (row.open) fill(row); }));
  find.addEventListener("input", filter);
  choices.forEach(one => one.addEventListener("change", filter));
  document.querySelectorAll("input[name=show]").forEach(one => one.addEventListener("change", draw));
  document.querySelectorAll("button[data-cause]").forEach(one => one.addEventListener("click", () => {
    pick(one.dataset.cause, one.dataset.title);
    document.getElementById("machines").scrollIntoView();
    count.focus({preventScroll: true});
  }));
  clear.addEventListener("click", () => { find.value = ""; choices.forEach(one => { one.value = ""; }); pick("", ""); find.focus(); });
  addEventListener("keydown", event => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName) && document.activeElement.type !== "radio";
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) { event.preventDefault(); find.focus(); find.select(); }
    if (event.key === "Escape" && document.activeElement === find) { find.value = ""; filter(); }
  });
  addEventListener("hashchange", target);
  again();
  draw();
  filter();
  target();
})();
