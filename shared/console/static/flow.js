// Services and topics as a picture: one lane a service, what it is told on the left, what it tells on the right.
import { html, useState } from "./vendor/preact-htm-3.1.1.js";
import { brief, count, pace, plural, sum } from "./text.js";

const PILL = { width: 196, height: 24, pitch: 30 };
const NODE = { width: 156, height: 50 };
const LEFT = 0, MIDDLE = 300, RIGHT = 604, WIDTH = 800;
const isShown = (topic) => !topic.includes(".dead.");

/** Each topic's owner, side and lane, and the arrows. */
export function arrange(services) {
  const names = services.map((each) => each.declared.name);
  const topics = new Map();
  for (const { declared } of services) {
    for (const name of [...declared.reads, ...declared.sends].filter(isShown)) {
      const of = name.split(".")[0];
      if (!topics.has(name)) topics.set(name, { name, owner: names.includes(of) ? of : declared.name, foreign: !names.includes(of) });
    }
  }
  for (const topic of topics.values()) {
    const readers = services.filter(({ declared }) => declared.reads.includes(topic.name)).map((each) => each.declared.name);
    topic.side = readers.includes(topic.owner) && !topic.name.includes(".events.") ? "left" : "right";
  }
  let top = 0;
  const lanes = services.map((service) => {
    const own = [...topics.values()].filter((each) => each.owner === service.declared.name);
    const sides = ["left", "right"].map((side) => own.filter((each) => each.side === side));
    const height = Math.max(NODE.height + 14, ...sides.map((side) => side.length * PILL.pitch + 10));
    for (const side of sides) side.forEach((topic, index) => {
      topic.y = top + height / 2 + (index - (side.length - 1) / 2) * PILL.pitch;
    });
    const lane = { service, y: top + height / 2, top, height };
    top += height + 10;
    return lane;
  });
  const arrows = lanes.flatMap((lane) => {
    const { name, reads, sends } = lane.service.declared;
    const to = (topic, reading) => ({ service: name, topic: topics.get(topic), lane, reading });
    return [...reads.filter(isShown).map((each) => to(each, true)), ...sends.filter(isShown).map((each) => to(each, false))];
  });
  return { lanes, topics: [...topics.values()], arrows, height: top - 10 };
}

function path({ topic, lane, reading }) {
  const left = topic.side === "left";
  const [x1, x2] = left ? [LEFT + PILL.width, MIDDLE] : [RIGHT, MIDDLE + NODE.width];
  // what a service sends lies below what it reads, so that two arrows between the same two do not cover each other
  const pill = { x: x1, y: topic.y + (reading ? -4 : 4) }, node = { x: x2, y: lane.y + (reading ? -8 : 8) };
  const [from, to] = reading ? [pill, node] : [node, pill];
  const bend = (x1 + x2) / 2;
  return `M${from.x} ${from.y}C${bend} ${from.y} ${bend} ${to.y} ${to.x} ${to.y}`;
}

export function Flow({ services }) {
  const [near, setNear] = useState(null);
  const { lanes, topics, arrows, height } = arrange(services);
  const sourcesOf = (topic) => services.flatMap(({ sources }) => sources.filter((each) => each.topic === topic));
  const paceOf = (topic) => Math.max(...sourcesOf(topic).map((each) => each.offsets_per_s ?? 0), 0);
  const read = (arrow) => services.find((each) => each.declared.name === arrow.service).sources.find((each) => each.topic === arrow.topic.name);
  const widthOf = (n) => 1 + Math.min(4, Math.log10(1 + n));
  const isNear = ({ service, topic }) => near === service || near === topic.name;
  const watch = (name) => ({ onMouseEnter: () => setNear(name), onMouseLeave: () => setNear(null) });
  return html`<section class="card flow" aria-labelledby="flow-title">
    <h2 id="flow-title">Flow <small>services: records handled per second; topics: offsets per second, transactions' markers among them; <b class="late">+n</b> records wait</small></h2>
    <div class="scroll" tabindex="0" role="group" aria-label="Picture of the flow">
    <svg viewBox="0 0 ${WIDTH} ${height}" class=${near ? "some" : ""} role="img" aria-label="Services and topics; the table below says the same">
      <defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 8 4 0 8z" /></marker></defs>
      ${lanes.map((lane) => html`<rect class="lane" x="0" y=${lane.top} width=${WIDTH} height=${lane.height} rx="8" />`)}
      ${arrows.map((arrow) => {
        const n = arrow.reading ? read(arrow)?.offsets_per_s ?? 0 : arrow.topic.name.startsWith(`${arrow.service}.events.`) ? paceOf(arrow.topic.name) : 0;
        return html`<path key=${`${arrow.service} ${arrow.topic.name} ${arrow.reading}`} class="arrow ${isNear(arrow) ? "near" : ""} ${n > 0 ? "moving" : ""}" d=${path(arrow)} stroke-width=${widthOf(n)} marker-end="url(#tip)" />`;
      })}
      ${topics.map((topic) => {
        const waits = sum(sourcesOf(topic.name).map((each) => each.lag_records));
        const x = topic.side === "left" ? LEFT : RIGHT, y = topic.y - PILL.height / 2;
        return html`<g key=${topic.name} class="topic" transform="translate(${x} ${y})" ...${watch(topic.name)}>
          <title>${topic.name}: ${pace(paceOf(topic.name))}, ${plural(waits, "record")} wait</title>
          <rect width=${PILL.width} height=${PILL.height} rx=${PILL.height / 2} />
          <text x="12" y="16">${topic.foreign ? topic.name : topic.name.split(".").slice(1).join(".")}</text>
          <text x=${PILL.width - 12} y="16" class="figure"><tspan class="late">${waits ? `+${brief(waits)}  ` : ""}</tspan>${pace(paceOf(topic.name))}</text>
        </g>`;
      })}
      ${lanes.map(({ service, y }) => html`<g key=${service.declared.name} class="service ${service.problem ? "wrong" : ""}" transform="translate(${MIDDLE} ${y - NODE.height / 2})" ...${watch(service.declared.name)}>
          <rect width=${NODE.width} height=${NODE.height} rx="8" />
          <text x="14" y="21" class="name">${service.declared.name}</text>
          <text x="14" y="39" class="sub">${service.problem ? "no answer" : `${pace(service.handled_per_s)} · ${plural(service.members.length, "worker")}`}</text>
        </g>`)}
    </svg></div>
    <details><summary>The same as a table</summary>
      <div class="scroll" tabindex="0" role="group" aria-label="The flow as a table"><table class="plain">
        <thead><tr><th scope="col">topic</th><th scope="col">read by</th><th scope="col">sent by</th><th scope="col" class="n">waiting</th><th scope="col" class="n">offsets/s</th></tr></thead>
        <tbody>${topics.map((topic) => {
          const by = (reading) => arrows.filter((each) => each.topic === topic && each.reading === reading).map((each) => each.service).join(", ") || "–";
          return html`<tr key=${topic.name}><th scope="row">${topic.name}</th><td>${by(true)}</td><td>${by(false)}</td><td class="n" data-topic=${topic.name}>${count(sum(sourcesOf(topic.name).map((each) => each.lag_records)))}</td><td class="n">${pace(paceOf(topic.name))}</td></tr>`;
        })}</tbody></table></div>
    </details>
  </section>`;
}
