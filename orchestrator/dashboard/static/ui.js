"use strict";
// Keeps relative times current, switches the theme, sends the form of a slider, and moves by keys: `g` and a letter, `/`, `?`, Escape.
(() => {
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const words = (seconds) => {
    const [size, unit] = units.find(([size]) => seconds >= size) ?? units[3];
    return `${Math.floor(seconds / size)} ${unit}`;
  };
  const tell = () => {
    if (document.hidden) return;
    for (const time of document.querySelectorAll("time[datetime]")) {
      const seconds = (Date.now() - Date.parse(time.dateTime)) / 1000;
      const text = seconds >= 0 ? `${words(seconds)} ago` : `in ${words(-seconds)}`;
      if (time.textContent !== text) time.textContent = text;
    }
  };
  setInterval(tell, 1000);

  const themes = ["system", "light", "dark"];
  const root = document.documentElement;
  const switcher = document.querySelector('[data-act="theme"]');
  const themeNow = () => root.dataset.theme ?? "system";
  const label = () => { if (switcher) switcher.textContent = `Theme: ${themeNow()}`; };
  switcher?.addEventListener("click", () => {
    const next = themes[(themes.indexOf(themeNow()) + 1) % themes.length];
    if (next === "system") delete root.dataset.theme; else root.dataset.theme = next;
    try { localStorage.setItem("orc-theme", next); } catch { /* It lasts until the page is left. */ }
    label();
  });
  label();

  const help = document.getElementById("help");
  document.querySelector('[data-act="help"]')?.addEventListener("click", () => help?.showModal());

  const close = () => {
    for (const open of document.querySelectorAll("details.stop[open], details.act[open]")) {
      open.open = false;
      if (open.contains(document.activeElement)) open.querySelector("summary").focus();
    }
  };
  let going = 0;
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { close(); return; }
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input,select,textarea")) return;
    if (event.key === "?") { help?.showModal(); return; }
    if (event.key === "g") { going = Date.now(); return; }
    if (Date.now() - going < 1500) {
      const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
      if (link) { event.preventDefault(); link.click(); }
      going = 0;
    } else if (event.key === "/") {
      const field = document.querySelector("[role=search] input");
      if (field) { event.preventDefault(); field.focus(); }
    }
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches("input[type=range]")) event.target.form?.requestSubmit();
  });
})();
