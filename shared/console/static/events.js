// What happened: the newest events of all services, and the story that one belongs to.
import { html, useEffect, useState } from "./vendor/preact-htm-3.1.1.js";
import { get, quoted, segment } from "./ask.js";
import { Command, Dialog } from "./parts.js";
import { count, moment, plural, took } from "./text.js";

const SHOWN = 20, STEP = 16, LINE = 26, TIME = 160, PALETTE = 6;

export const placeOf = ({ topic, partition, offset }) => `${topic}/${partition}@${offset}`;

/** Each word has to be in it, wherever. */
const has = (event, words) => words.every((word) => `${event.type} ${event.key} ${event.topic} ${event.correlation_id} ${event.id}`.toLowerCase().includes(word));

/** lost: how many came too fast to be shown, at most. */
export function Tail({ events, lost, newest, openStory }) {
  const [filter, setFilter] = useState(""), [held, setHeld] = useState(null);
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const found = (held ?? events).filter((each) => has(each, words)), shown = found.slice(-SHOWN).reverse();
  const since = held ? events.length - 1 - events.indexOf(held[held.length - 1]) : 0;
  return html`<section class="card tail" aria-labelledby="tail"><h2 id="tail">Events <small>as they are committed, of all services; their contents are in the tables</small></h2>
    <form class="search" onSubmit=${(event) => event.preventDefault()}>
      <label class="wide"><span class="hidden">filter: words that are in type, key, topic or id</span><input type="search" name="filter" placeholder="words in type, key, topic or id" value=${filter} spellcheck=${false} autocapitalize="off" onInput=${({ currentTarget }) => setFilter(currentTarget.value)} /></label>
      <button type="button" aria-pressed=${held != null} onClick=${() => setHeld(held ? null : events)}>hold</button></form>
    <p class="hints">${held ? `held, ${count(since)} more ${since === 1 ? "has" : "have"} come; ` : ""}${shown.length < found.length ? `the last ${count(shown.length)} of ${plural(found.length, "event")}` : plural(found.length, "event")}${words.length ? ` of ${count(events.length)}` : ""}${lost ? `; up to ${count(lost)} more came too fast to be shown` : ""}</p>
    ${newest.problem ? html`<p class="problem">No new events: ${newest.problem}</p>` : ""}${newest.unread.length ? html`<p class="problem">Not read: ${newest.unread.join(", ")}</p>` : ""}
    ${shown.length ? html`<div class="scroll" tabindex="0" role="group" aria-label="Newest events"><table class="plain">
      <thead><tr><th scope="col">event</th><th scope="col">of</th><th scope="col">at</th><th scope="col">lies at</th></tr></thead>
      <tbody>${shown.map((each) => html`<tr key=${placeOf(each)} data-event=${each.id}><th scope="row"><button type="button" class="link" onClick=${() => openStory(each.service, placeOf(each))}>${each.type}<span class="hidden">: its story</span></button></th>
        <td>${each.key}</td><td><time>${moment(each.at)}</time></td><td class="empty">${placeOf(each)}</td></tr>`)}</tbody></table></div>` : html`<p class="empty">${events.length ? "None has all of these words." : "Nothing happened yet."}</p>`}
  </section>`;
}

export function StoryDialog({ service, id, onClose }) {
  const [found, setFound] = useState(null);
  useEffect(() => {
    const stop = new AbortController();
    get(service, `/stories/${segment(id)}`, stop.signal).then((answer) => answer && setFound(answer));
    return () => stop.abort();
  }, [service, id]);
  return html`<${Dialog} title="Story" onClose=${onClose}>
    ${!found ? html`<p class="empty" role="status">Reading the topics around ${id}…</p>` : found.status === 200 ? html`<${Story} story=${found.body} />` : html`<p class="problem" role="alert">${found.status || ""} ${found.body.detail}</p>`}
    <${Command} text=${`python3 dev.py story ${quoted(id)}`} /></${Dialog}>`;
}

/** For each step, the depths at which a line goes on below it. */
function lines(steps) {
  const open = new Set(), found = [];
  for (const { depth } of [...steps].reverse()) {
    for (const each of open) if (each > depth) open.delete(each);
    found.unshift({ through: [...open].filter((each) => each < depth), goesOn: open.has(depth) });
    open.add(depth);
  }
  return found;
}

const middle = (depth) => 8 + depth * STEP;

function Branch({ step, line, deepest, isCause }) {
  const x = middle(step.depth), up = middle(step.depth - 1), y = LINE / 2;
  return html`<svg class="branch" width=${middle(deepest) + 8} height=${LINE} aria-hidden="true">
    ${line.through.filter((each) => each > 0).map((each) => html`<path d="M${middle(each - 1)} 0V${LINE}" />`)}
    ${step.depth ? html`<path d="M${up} 0V${line.goesOn ? LINE : y}M${up} ${y}H${x}" />` : ""}
    ${isCause ? html`<path d="M${x} ${y}V${LINE}" />` : ""}<circle cx=${x} cy=${y} r="4" /></svg>`;
}

function Story({ story }) {
  const { steps } = story;
  const times = steps.map((each) => Date.parse(each.at)), began = Math.min(...times), whole = Math.max(...times) - began;
  const services = [...new Set(steps.map((each) => each.topic.split(".")[0]))];
  const deepest = Math.max(...steps.map((each) => each.depth)), drawn = lines(steps);
  const done = new Set(steps.filter((each) => each.topic.split(".")[1] !== "timers").map((each) => each.id));
  const x = (at) => 4 + ((TIME - 8) * (at - began)) / Math.max(1, whole);
  return html`<p class="hints"><b>${story.correlation_id}</b> ${plural(steps.length, "record")} in ${services.join(", ")}; ${moment(began)}, ${took(whole)} in all</p>
    <div class="scroll" tabindex="0" role="group" aria-label="Records of the story"><table class="story">
      <thead><tr><th scope="col">record</th><th scope="col">of</th><th scope="col" class="n">waited</th><th scope="col"><span class="hidden">when</span></th><th scope="col">lies at</th></tr></thead>
      <tbody>${steps.map((each, index) => {
        const service = each.topic.split(".")[0], waits = each.topic.split(".")[1] === "timers" && !done.has(each.id);
        const until = x(times[index]), since = x(Math.max(began, times[index] - (each.waited_ms ?? 0)));
        return html`<tr key=${index} class="hue${services.indexOf(service) % PALETTE}" data-depth=${each.depth}>
          <th scope="row"><span class="step"><${Branch} step=${each} line=${drawn[index]} deepest=${deepest} isCause=${steps[index + 1]?.depth > each.depth} /><b>${each.type}</b>
            ${each.failures.map((failure) => html`<span class="problem">parked at ${moment(failure.at)}: ${failure.code}</span>`)}${waits ? html`<span class="late">a timer, still open</span>` : ""}
            ${each.causation_id && each.cause == null ? html`<span class="late">its cause, ${each.causation_id}, was not found</span>` : ""}</span></th>
          <td>${each.key}</td><td class="n">${each.waited_ms == null ? "" : took(each.waited_ms)}</td>
          <td><svg class="when" width=${TIME} height=${LINE} aria-hidden="true"><path d="M${since} ${LINE / 2}H${until}" /><circle cx=${until} cy=${LINE / 2} r="4" /></svg></td><td class="empty">${placeOf(each)}</td></tr>`;
      })}</tbody></table></div>
    <p class="hints ${story.whole ? "" : "late"}">${story.whole ? "This is all of it" : "There may be more of it, and the command below takes the time that it needs"}; ${plural(story.records_read, "record")} read in ${story.seconds.toFixed(1)} s${story.unread.length ? `; not read: ${story.unread.join(", ")}` : ""}</p>`;
}
