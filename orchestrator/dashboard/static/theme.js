"use strict";
// Runs before the page is drawn, so that a chosen theme does not flash.
document.documentElement.classList.add("js");
try {
  const theme = localStorage.getItem("orc-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch { /* The browser keeps nothing; the system's theme stays. */ }
