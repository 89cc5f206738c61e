// What several sections draw with.
import { html, useEffect, useRef } from "./vendor/preact-htm-3.1.1.js";

/** A page that came neither by https nor from this machine has no clipboard: its user presses the keys. */
export function Command({ text }) {
  const copy = async ({ currentTarget: button }) => {
    const copied = await navigator.clipboard?.writeText(text).then(() => true, () => false);
    if (!copied) getSelection().selectAllChildren(button.previousElementSibling);
    button.textContent = copied ? "copied" : "selected";
    setTimeout(() => (button.textContent = "copy"), 1500);
  };
  return html`<div class="command"><code tabindex="0">${text}</code><button type="button" onClick=${copy}>copy</button></div>`;
}

export const written = (value) => (typeof value === "string" ? value : JSON.stringify(value));

/** Null is shown as such, and what is nested as JSON. */
export function Value({ of }) {
  if (of == null) return html`<span class="empty">–</span>`;
  return written(of);
}

/** changed: what it was before; fields that differ are marked. Null: nothing is. */
export function Fields({ of, changed }) {
  const differs = (name) => changed && written(changed[name]) !== written(of[name]);
  return html`<dl class="fields">${Object.keys(of).map((name) => html`<div key=${name} class=${differs(name) ? "changed" : ""}><dt>${name}</dt>
    <dd><${Value} of=${of[name]} />${differs(name) ? html` <small>was <${Value} of=${changed[name]} /></small>` : ""}</dd></div>`)}</dl>`;
}

let dialogs = 0;

/** Over the page, until it is closed. */
export function Dialog({ title, onClose, children }) {
  const dialog = useRef(null), id = useRef(null);
  id.current ??= `dialog-${(dialogs += 1)}`;
  useEffect(() => dialog.current.showModal(), []);
  return html`<dialog ref=${dialog} aria-labelledby=${id.current} onClose=${onClose}><header><h2 id=${id.current}>${title}</h2>
    <button type="button" onClick=${() => dialog.current.close()}>close</button></header>${children}</dialog>`;
}
