// The page creates elements only here: data from a server or a user always becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** Create an element with attributes (null: left out, true: empty) and children (nodes, or values shown as text). */
export function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** Create an SVG element in the same way. */
export function drawn(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** Create a button with a click handler. */
export function button(text, attributes, onClick) {
  const made = make("button", { type: "button", ...attributes }, text);
  made.addEventListener("click", onClick);
  return made;
}

/** Render a part of the page anew. The focus stays on the control of the same name, which `nameOf(control)` returns. */
export function keepFocus(part, nameOf, render) {
  const focused = part.contains(document.activeElement) ? nameOf(document.activeElement) : undefined;
  render();
  if (focused === undefined) return;
  const controls = [...part.querySelectorAll("button, input, select, [tabindex]")];
  controls.find((each) => nameOf(each) === focused)?.focus({ preventScroll: true });
}

/** Emit an event that bubbles up. */
export function tell(element, what, detail) {
  element.dispatchEvent(new CustomEvent(what, { bubbles: true, detail }));
}

/** Copy a text; returns whether that worked. */
export async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const focused = document.activeElement;
    // Browsers offer the clipboard only to pages from https and localhost; `execCommand` works elsewhere.
    const area = make("textarea", { class: "unseen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    focused?.focus();
    return done;
  }
}

/** Let the browser save a text as a file. */
export function saved(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
