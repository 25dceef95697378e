// The theme: light, dark or the system's.

const THEMES = ["system", "light", "dark"];
const KEY = "farrank-theme";

/** Show the theme that was chosen last, and let a button switch to the next. */
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
      // Without storage the choice lasts until the page is left.
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
