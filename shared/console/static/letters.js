// Records that could not be handled: what they are, and what is done with them, by whom and why.
import { html, useEffect, useState } from "./vendor/preact-htm-3.1.1.js";
import { get, indented, mend, segment } from "./ask.js";
import { Command, Dialog } from "./parts.js";
import { count, plural, total } from "./text.js";

const called = (service, letter) => `${service.declared.name} ${letter.id}`;

export function Letters({ services, operator, withToken, tell, openStory }) {
  const [chosen, setChosen] = useState(null);
  const letters = services.flatMap((service) => service.letters.map((letter) => ({ service, letter })));
  const now = chosen && letters.find((each) => each.service.declared.name === chosen.service && each.letter.id === chosen.letter.id)?.letter;
  const gone = now?.offset !== chosen?.letter.offset;
  const parked = total(services.map((each) => each.parked));
  return html`<section class="card letters" aria-labelledby="letters"><h2 id="letters">Dead letters <small>${plural(parked, "key")} parked${parked > letters.length ? `, ${letters.length} shown` : ""}</small></h2>
    ${letters.map(({ service, letter }) => html`<article key=${called(service, letter)} class="letter">
      <h3><button type="button" class="link" onClick=${() => setChosen({ service: service.declared.name, letter })}>${service.declared.name} <code>${letter.id}</code></button></h3>
      <p><b>${letter.code}</b> ${letter.reason}</p>
      <p class="why">${letter.topic}/${letter.partition} at ${letter.offset}, tried ${plural(letter.attempts, "time")}, ${count(letter.behind)} behind</p></article>`)}
    ${letters.length ? "" : html`<p class="empty">${parked === 0 ? "Nothing is parked." : "Not every partition told what is parked."}</p>`}
    ${chosen ? html`<${Letter} key=${`${chosen.service} ${chosen.letter.id}`} ...${{ service: chosen.service, letter: gone ? chosen.letter : now, gone, operator, withToken, tell, openStory }} onClose=${() => setChosen(null)} />` : ""}</section>`;
}

const DONE = { retry: "is tried again", discard: "is discarded", correct: "is to be decided with other data" };

/** gone: its record is not the first that is parked under its id any more. */
function Letter({ service, letter, gone, operator, withToken, tell, openStory, onClose }) {
  const [record, setRecord] = useState(null), [why, setWhy] = useState(""), [draft, setDraft] = useState(null), [answer, setAnswer] = useState(null), [busy, setBusy] = useState(false);
  useEffect(() => {
    const stop = new AbortController();
    get(service, `/dead-letters/${segment(letter.id)}/record`, stop.signal).then((found) => found && setRecord(found));
    return () => stop.abort();
  }, []);
  const place = `${letter.topic}/${letter.partition}/${letter.offset}`;
  const act = async (action, more, data) => {
    if (!why.trim()) return setAnswer({ wrong: true, text: "Say why first: it is kept with what is done." });
    setBusy(true);
    const { status, body } = await mend({ service, id: letter.id, action, reason: why.trim(), ...more }, operator, data);
    setBusy(false);
    if (status !== 201 && status !== 202) return setAnswer({ wrong: true, text: `${status || ""} ${body.detail}` });
    tell(`${service}: ${place} ${DONE[action]}`);
    setDraft(null);
    setAnswer({ text: status === 201 ? `${place} has taken effect with other data.` : `Asked for: ${place} ${DONE[action]}.`, command: body.command_id });
  };
  const send = () => {
    try {
      const read = JSON.parse(draft);
      if (read === null || typeof read !== "object" || Array.isArray(read)) throw new Error("its data are an object");
    } catch (error) {
      return setAnswer({ wrong: true, text: `Not what a command has: ${error.message}` });
    }
    act("correct", { offset: letter.offset }, draft);
  };
  return html`<${Dialog} title=${`Dead letter of ${service}`} onClose=${onClose}>
    <p><code>${letter.id}</code></p><p><b>${letter.code}</b> ${letter.reason}</p>
    <p class="why">${gone ? `${place} is no longer parked here` : `${place}, tried ${plural(letter.attempts, "time")}, ${count(letter.behind)} behind it`}</p>
    <${Record} found=${record} />
    ${operator == null ? html`<${Command} text=${letter.show} /><p class="empty">This page only shows them: see \`console --mend\`.</p>` : html`
      <form class="mend" onSubmit=${(event) => event.preventDefault()}>
        <label>Why <input name="why" required maxlength="200" value=${why} onInput=${({ currentTarget }) => setWhy(currentTarget.value)} /></label>
        <p class="hints">${withToken ? "Recorded as done by the token's bearer." : `Recorded as done by ${operator}.`}</p>
        <div class="buttons"><button type="button" disabled=${busy || gone} onClick=${() => act("retry")}>retry all of the key</button>
          <button type="button" disabled=${busy || gone} onClick=${() => act("discard", { offset: letter.offset })}>discard this record</button>
          ${record?.body.data && draft == null && !gone ? html`<button type="button" onClick=${() => setDraft(indented(record.body.data))}>edit it</button>` : ""}
          <button type="button" onClick=${() => openStory(service, place)}>story</button></div>
        ${draft == null ? "" : html`<label class="draft">Its data <textarea name="data" rows="8" spellcheck=${false} value=${draft} onInput=${({ currentTarget }) => setDraft(currentTarget.value)}></textarea></label>
          <div class="buttons"><button type="button" disabled=${busy || gone} onClick=${send}>decide it with these data</button> <button type="button" onClick=${() => setDraft(null)}>leave it</button></div>`}
      </form>`}
    <p role="status" class=${answer?.wrong ? "problem" : "fine"}>${answer?.text ?? ""}${answer?.command ? html` <button type="button" onClick=${() => openStory(service, answer.command)}>its story</button>` : ""}</p></${Dialog}>`;
}

function Record({ found }) {
  if (!found) return html`<p class="empty">Reading the record…</p>`;
  if (found.status !== 200) return html`<p class="problem">The record is not shown: ${found.status} ${found.body.detail}</p>`;
  const { value } = found.body;
  if (value == null) return html`<p class="empty">It has no value, or one that is no text.</p>`;
  return html`<pre tabindex="0" aria-label="The record">${isJson(value) ? indented(value) : value}</pre>`;
}

function isJson(text) {
  try {
    return JSON.parse(text) !== undefined;
  } catch {
    return false;
  }
}
