// What the page asks of workers: through the console's own server, or as a worker's own page of that worker itself.

let own = false, token = ""; // which is kept nowhere else

const headers = (more) => ({ "Onefold-Console": "1", ...(token ? { Authorization: `Bearer ${token}` } : {}), ...more }); // the first, no page of another origin may send

export const signIn = (text) => (token = text.trim());

const LOCKED = [401, 403], TRIES = 20;

/** Calls `seen` with each picture, and `lost` with the status where there is none, until the result is aborted. */
export function streamed(seen, lost) {
  const stop = new AbortController(), { signal } = stop;
  const once = async () => {
    const answer = await fetch("stream", { headers: headers(), signal });
    if (!answer.ok) return answer.status;
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = "", read; !(read = await reader.read()).done; ) {
      const blocks = (rest + read.value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks.filter((each) => each.startsWith("data: "))) {
        const picture = JSON.parse(block.slice("data: ".length));
        own = picture.own;
        queueMicrotask(() => signal.aborted || seen(picture)); // what fails there is no lost stream
      }
    }
    return 0;
  };
  (async () => {
    while (!signal.aborted) {
      const status = await once().catch(() => 0);
      if (signal.aborted) return;
      lost(status);
      if (LOCKED.includes(status)) return;
      await new Promise((done) => setTimeout(done, 1000));
    }
  })();
  return stop;
}

/** What the JSON says, with whole numbers that JavaScript would round kept as they are written. */
export const parsed = (text) => JSON.parse(text, (_, value, context) =>
  Number.isInteger(value) && !Number.isSafeInteger(value) && context && JSON.rawJSON ? JSON.rawJSON(context.source) : value);

/** The same JSON over several lines: each text and number as it is written, which JavaScript would not always keep. */
export function indented(json) {
  let depth = 0;
  const line = () => `\n${"  ".repeat(depth)}`;
  return json.replace(/"(?:[^"\\]|\\.)*"|\s+|\[\s*\]|\{\s*\}|[[\]{},:]/g, (part) => {
    if (part.trim() === "") return "";
    if (part === "{" || part === "[") depth += 1;
    if (part === "}" || part === "]") return (depth -= 1, line() + part);
    return part + (part === ":" ? " " : "{[,".includes(part) ? line() : "");
  });
}

/** {status, body} of GET; the target is a path with its query. Null if a later question has taken its place. Viewers of
    the console are one client to a worker, which has one turn at what is costly: the others ask again. */
export async function get(service, target, signal) {
  try {
    let answer;
    for (let tries = 0; tries < TRIES; tries += 1) {
      if (tries) await new Promise((done) => setTimeout(done, 1000));
      answer = await fetch(own ? `..${target}` : `ask/${encodeURIComponent(service)}${target}`, { signal, headers: headers() });
      if (answer.status !== 429) break;
    }
    return { status: answer.status, body: parsed(await answer.text()) };
  } catch (failure) {
    if (failure.name === "AbortError") return null;
    return { status: 0, body: { detail: "nobody answers" } };
  }
}

export const segment = (text) => encodeURIComponent(text);

/** As a word for a shell: ids are whatever strangers chose. */
export const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** As one types it; a token is named, never shown. */
export const curl = (url, withToken) => `curl ${withToken ? `-H "Authorization: Bearer $ONEFOLD_TOKEN" ` : ""}${quoted(url)}`;

/** What a service lists, by its OpenAPI document, which workers publish in dev: path, row and parameters of each. */
export async function listsOf(service) {
  const { status, body } = await get(service, "/openapi.json");
  const paths = status === 200 ? body.paths : {};
  const isList = (get) => get?.parameters?.some((each) => each.name === "cursor" && each.in === "query");
  return Object.keys(paths).filter((path) => !path.includes("{") && path !== "/dead-letters" && isList(paths[path].get)).map((path) => {
    const row = Object.keys(paths).find((each) => each.startsWith(`${path}/{`) && each.indexOf("}") === each.length - 1);
    return {
      path,
      key: row?.slice(path.length + 2, -1),
      history: Boolean(row && paths[`${row}/events`]),
      parameters: paths[path].get.parameters.filter((each) => each.in === "query").map((each) => each.name),
    };
  });
}

/** {status, body} of what is to be done with a dead letter. data: JSON of what a correction says, sent as written. */
export async function mend({ service, id, action, ...asked }, by, data) {
  const target = own ? `../dead-letters/${segment(id)}/${action}` : "dead-letters";
  const told = JSON.stringify(own ? { ...asked, by } : { service, id, action, ...asked });
  const body = told.slice(0, -1) + (data === undefined ? "}" : `,"data":${data}}`);
  try {
    const answer = await fetch(target, { method: "POST", headers: headers({ "Content-Type": "application/json" }), body });
    return { status: answer.status, body: await answer.json() };
  } catch {
    return { status: 0, body: { detail: "nobody answers" } };
  }
}
