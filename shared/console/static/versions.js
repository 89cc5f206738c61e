// The versions of each service: which one answers and who owns what in it; and what is run to make, compare and swap them.
import { html, useState } from "./vendor/preact-htm-3.1.1.js";
import { Dialog } from "./parts.js";
import { address, plural, ranges, span } from "./text.js";

const RESULTS = { 0: "done", 1: "it could not be done" };
const COMPARISONS = { 0: "they agree", 1: "they DIFFER" };
const isComparison = (verb) => verb === "parity" || verb === "compare";

/** What a screen reader reads out by itself is its state, and not what changes with each picture. */
function Run({ run: { verb, said, exit_code: code, at: begun }, at }) {
  const runs = code == null, result = (isComparison(verb) ? COMPARISONS : RESULTS)[code] ?? "it could not be done";
  return html`<p class=${code ? "problem" : runs ? "why" : "fine"}><code>${verb}</code> <b role="status">${runs ? "runs" : result}</b>${runs ? ` for ${span(Math.max(0, at - begun))}` : ""} ${said.length === 1 ? said[0] : ""}</p>
    ${said.length > 1 ? html`<pre tabindex="0" aria-label="What it says">${said.join("\n")}</pre>` : ""}`;
}

function stateOf({ workers, begun, declared }) {
  if (workers) return plural(workers, "worker");
  return begun ? "stopped; its positions stay" : declared ? "has not begun" : "";
}

/** By number: what brokers and a worker tell of each. found: null before brokers have answered, or why they don't. */
function rowsOf({ declared, standing }, found) {
  const rows = new Map((Array.isArray(found) ? found : []).map((each) => [each.version, each]));
  for (const version of [...Object.keys(standing?.owners ?? {}).map(Number), declared.version])
    if (!rows.has(version)) rows.set(version, { version });
  return [...rows.values()].sort((a, b) => a.version - b.version);
}

function Owners({ of, nameOf }) {
  const owned = new Map();
  for (const [partition, url] of Object.entries(of)) owned.set(url, [...(owned.get(url) ?? []), +partition]);
  return [...owned].map(([url, numbers]) => html`<span key=${url} class="owned">${nameOf(url)} owns ${ranges(numbers)}</span>`);
}

/** What may be done here, by what stands: label, verb, and what it does; without that it begins at once. */
function choices({ declared, standing }, rows) {
  const own = declared.version, active = standing?.active ?? own, begun = (each) => each.begun || each.workers > 0;
  const begins = rows.some((each) => each.version === own && each.begun === false) && rows.some((each) => each.version < own && begun(each));
  const found = [{ verb: "parity", label: "compare its tables with their events" }];
  if (begins && declared.beside) found.push({ verb: "deploy", label: `deploy version ${own}`, asksWhy: true, does: `Version ${own} begins at the first record, beside the one that answers, and answers nothing yet. Then start workers of it.` });
  if (begins) found.push({ verb: "rebuild", label: `rebuild version ${own}`, does: `All workers are stopped, Spark fills version ${own} from history, and its workers start. Nobody answers meanwhile; if it fails, they start all the same, and it says what to do.` });
  if (!declared.beside) return found;
  if (rows.filter(begun).length > 1) found.push({ verb: "compare", label: "compare the rows of both" });
  if (active !== own && rows.some((each) => each.version === own && begun(each))) found.push({ verb: "switch", label: `switch to version ${own}`, asksWhy: true, does: `Version ${own} answers all requests, once it has read as far as version ${active}. A rollback goes back.` });
  if (standing?.former != null) found.push({ verb: "rollback", label: `roll back to version ${standing.former}`, asksWhy: true, does: `Version ${standing.former} answers all requests again.` });
  for (const { version } of rows.filter((each) => each.version !== active && each.version !== own && each.workers === 0 && each.begun))
    found.push({ verb: "retire", version, label: `retire version ${version}`, asksWhy: true, does: `Its group and all its rows are deleted. There is no way back.` });
  return found;
}

function Ask({ service, choice, run, onClose }) {
  const [why, setWhy] = useState(""), [wrong, setWrong] = useState("");
  const go = () => {
    if (choice.asksWhy && !why.trim()) return setWrong("Say why first: it is kept with what is done.");
    run(service, choice, why.trim()).then((refusal) => (refusal ? setWrong(refusal) : onClose()));
  };
  return html`<${Dialog} title=${`${service}: ${choice.label}`} onClose=${onClose}><p>${choice.does}</p>
    <form class="mend" onSubmit=${(event) => (event.preventDefault(), go())}>
      ${choice.asksWhy ? html`<label>Why <input name="why" required maxlength="200" value=${why} onInput=${({ currentTarget }) => setWhy(currentTarget.value)} /></label>` : ""}
      <div class="buttons"><button type="button" onClick=${go}>${choice.label}</button></div></form>
    <p role="status" class="problem">${wrong}</p></${Dialog}>`;
}

function Service({ service, found, last, verbs, busy, at, nameOf, run, ask }) {
  const { name } = service.declared, rows = rowsOf(service, found), { standing } = service, active = standing?.active ?? rows[0].version;
  const switched = standing?.by && `version ${active} answers since ${standing.by} decided so${standing.reason ? `: ${standing.reason}` : ""}`;
  return html`<article data-service=${name}><h3>${name}</h3>
    ${typeof found === "string" ? html`<p class="problem">The brokers don't tell: ${found}</p>` : ""}
    <ul>${rows.map((each) => html`<li key=${each.version} data-version=${each.version}><b>version ${each.version}</b> ${found ? stateOf(each) : "asking the brokers"}${rows.length > 1 ? html`${each.version === active ? html` <b class="fine">answers</b>` : ""}${each.declared ? html` <small>of this checkout</small>` : ""} <${Owners} of=${standing?.owners[each.version] ?? {}} nameOf=${(url) => address(nameOf(service, url))} />` : ""}</li>`)}</ul>
    ${switched ? html`<p class="why">${switched}</p>` : ""}
    ${last ? html`<${Run} key=${last.at} run=${last} at=${at} />` : ""}
    <div class="buttons">${choices(service, rows).filter(({ verb }) => verbs.includes(verb)).map((choice) => html`<button key=${choice.label} type="button" data-verb=${choice.verb} disabled=${busy} onClick=${() => (choice.does ? ask(name, choice) : run(name, choice))}>${choice.label}<span class="hidden"> of ${name}</span></button>`)}</div></article>`;
}

export function Versions({ picture: { services, versions, verbs, runs, at, own }, nameOf, run }) {
  const [asked, setAsked] = useState(null);
  const busy = runs.some((each) => each.exit_code == null);
  return html`<section class="card versions" aria-labelledby="versions"><h2 id="versions">Versions</h2>
    ${services.map((service) => html`<${Service} key=${service.declared.name} service=${service} found=${own ? [] : versions[service.declared.name]}
      last=${runs.find((each) => each.service === service.declared.name)} ask=${(service, choice) => setAsked({ service, choice })} ...${{ verbs, busy, at, nameOf, run }} />`)}
    ${asked ? html`<${Ask} ...${asked} run=${run} onClose=${() => setAsked(null)} />` : ""}</section>`;
}
