// The versions of each service, and whether its tables are what their events say.
import { html } from "./vendor/preact-htm-3.1.1.js";
import { plural, span } from "./text.js";

const RESULTS = { 0: "they agree", 1: "they DIFFER" };

/** What a screen reader reads out by itself is its state, and not what changes with each picture. */
function Check({ check, at }) {
  const runs = check.exit_code == null;
  return html`<p class=${check.exit_code ? "problem" : check.exit_code === 0 ? "fine" : "why"}><b role="status">${runs ? "runs" : RESULTS[check.exit_code] ?? "it could not be done"}</b>${runs ? ` for ${span(Math.max(0, at - check.at))}` : ""} ${check.said}</p>`;
}

function stateOf({ declared, workers, begun }) {
  if (workers) return plural(workers, "worker");
  return begun ? "stopped; its positions stay" : declared ? "has not begun" : "";
}

/** found: null before brokers have answered, and a text if they do not tell. */
function Found({ declared, found }) {
  if (typeof found === "string") return html`<p class="problem">The brokers don't tell: ${found}</p>`;
  if (!found) return html`<ul><li><b>version ${declared.version}</b> asking the brokers</li></ul>`;
  return html`<ul>${found.map((each) => html`<li key=${each.version}><b>version ${each.version}</b> ${stateOf(each)}${each.declared && found.length > 1 ? html` <small>of this checkout</small>` : ""}</li>`)}</ul>`;
}

export function Versions({ picture: { services, versions, checks, at }, actions }) {
  return html`<section class="card versions" aria-labelledby="versions"><h2 id="versions">Versions</h2>
    ${services.map(({ declared, declared: { name } }) => html`<article key=${name} data-service=${name}><h3>${name}</h3>
      <${Found} declared=${declared} found=${versions[name]} />
      ${checks.filter((each) => each.service === name).map((check) => html`<${Check} key=${check.at} check=${check} at=${at} />`)}
      ${actions && html`<button type="button" disabled=${checks.some((each) => each.exit_code == null)} onClick=${() => actions.check(name)}>compare its tables with their events<span class="hidden"> of ${name}</span></button>`}</article>`)}</section>`;
}
