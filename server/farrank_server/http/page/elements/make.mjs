// Elements are made here and nowhere else: what comes from a server or a user only ever becomes text.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes (null: left out, true: empty) and children, which are nodes or become text. */
export function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
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

/** A button that does something. */
export function button(text, attributes, onClick) {
  const made = make("button", { type: "button", ...attributes }, text);
  made.addEventListener("click", onClick);
  return made;
}

/** Tell who listens further up. */
export function tell(element, what, detail) {
  element.dispatchEvent(new CustomEvent(what, { bubbles: true, detail }));
}
