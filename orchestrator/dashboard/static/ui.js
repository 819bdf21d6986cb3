"use strict";
// Keeps relative times current, and moves between pages by `g` and a letter; `/` finds, Escape closes.
(() => {
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const words = (seconds) => {
    const [size, unit] = units.find(([size]) => seconds >= size) ?? units[3];
    return `${Math.floor(seconds / size)} ${unit}`;
  };
  const tell = () => {
    for (const time of document.querySelectorAll("time[datetime]")) {
      const seconds = (Date.now() - Date.parse(time.dateTime)) / 1000;
      const text = seconds >= 0 ? `${words(seconds)} ago` : `in ${words(-seconds)}`;
      if (time.textContent !== text) time.textContent = text;
    }
  };
  setInterval(tell, 1000);
  let going = 0;
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      for (const open of document.querySelectorAll("details.stop[open]")) open.open = false;
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input,select,textarea")) return;
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
})();
