// The theme that the evidence page remembers; the button of these pages stores its own.
(() => {
  let theme = null;
  try {
    theme = localStorage.getItem("theme") ?? localStorage.getItem("farrank-theme");
  } catch {
    // Without storage the system's theme counts.
  }
  document.body.dataset.theme = theme === "light" || theme === "dark" ? theme : "auto";
})();
