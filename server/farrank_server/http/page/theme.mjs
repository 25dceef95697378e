// Light, dark, or as the system has it.

const THEMES = ["system", "light", "dark"];
const KEY = "farrank-theme";

/** Show the theme that was chosen last, and let a button choose the next. */
export function startTheme(button) {
  let theme = remembered();
  const show = () => {
    document.documentElement.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
  };
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    show();
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // A browser that keeps nothing shows it until the page is left.
    }
  });
  show();
}

function remembered() {
  try {
    const theme = localStorage.getItem(KEY);
    return THEMES.includes(theme) ? theme : "system";
  } catch {
    return "system";
  }
}
