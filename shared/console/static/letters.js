// Records that could not be handled.
import { html } from "./vendor/preact-htm-3.1.1.js";
import { Command } from "./parts.js";
import { count, plural, total } from "./text.js";

export function Letters({ services }) {
  const letters = services.flatMap((service) => service.letters.map((letter) => ({ service, letter })));
  const parked = total(services.map((each) => each.parked));
  return html`<section class="card letters" aria-labelledby="letters"><h2 id="letters">Dead letters <small>${plural(parked, "key")} parked${parked > letters.length ? `, ${letters.length} shown` : ""}</small></h2>
    ${letters.map(({ service, letter }) => html`<article key=${service.declared.name + letter.id} class="letter">
      <h3>${service.declared.name} <code>${letter.id}</code></h3>
      <p><b>${letter.code}</b> ${letter.reason}</p>
      <p class="why">${letter.topic}/${letter.partition} at ${letter.offset}, tried ${plural(letter.attempts, "time")}, ${count(letter.behind)} behind</p>
      <${Command} text=${letter.show} /></article>`)}
    ${letters.length ? "" : html`<p class="empty">${parked === 0 ? "Nothing is parked." : "Not every partition told what is parked."}</p>`}</section>`;
}
