// Requests to the server: the API key, JSON in and out, errors as one line, and streams of server-sent events.
import {element} from "./dom.js";

const keyName = "regard-api-key";

// Its session storage keeps the key; a browser may forbid storage.
function storedKey() {
  try {
    return sessionStorage.getItem(keyName) ?? "";
  } catch {
    return "";
  }
}

let key = storedKey();
let asking = null; // the open question, shared by all requests that wait for a key

// Ask for the API key once, however many requests were refused; null if it was not given.
function askKey() {
  asking ??= new Promise((done) => {
    const field = element("input", {id: "key", type: "password", autocomplete: "off", required: true, "aria-label": "API key"});
    const form = element("form", {method: "dialog"}, element("h2", {}, "API key"),
      element("p", {class: "quiet"}, key ? "This key was not accepted." : "This server answers only with a key. It stays in this tab."),
      field, element("button", {type: "submit", class: "primary", value: "given"}, "Continue"));
    const dialog = element("dialog", {id: "key-dialog", "aria-label": "API key"}, form);
    dialog.addEventListener("close", () => {
      const given = dialog.returnValue === "given" ? field.value.trim() : null;
      dialog.remove();
      asking = null;
      if (given) {
        key = given;
        try {
          sessionStorage.setItem(keyName, given);
        } catch {
          // It is kept until the page is closed.
        }
      }
      done(given);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
  return asking;
}

// The line that an answer gives as its reason, in the shape of either interface.
async function refusal(answer) {
  let found = null;
  try {
    const body = await answer.json();
    found = body.error?.message ?? body.error ?? body.detail;
  } catch {
    // not JSON
  }
  return new Error(typeof found === "string" ? found : `the server answered ${answer.status}`);
}

async function send(path, {body = null, signal = null, method = body ? "POST" : "GET"} = {}) {
  for (;;) {
    const headers = {...(body ? {"Content-Type": "application/json"} : {}), ...(key ? {Authorization: `Bearer ${key}`} : {})};
    const sentKey = key;
    const answer = await fetch(path, {method, headers, signal, body: body ? JSON.stringify(body) : null, cache: "no-store"});
    if (answer.ok) return answer;
    if (answer.status !== 401) throw await refusal(answer);
    if (key === sentKey && !(await askKey())) throw await refusal(answer);
  }
}

export async function get(path, query = {}) {
  const parts = new URLSearchParams(query).toString();
  return (await send(parts ? `${path}?${parts}` : path)).json();
}

export async function post(path, body, signal = null) {
  return (await send(path, {body, signal})).json();
}

// Call f(chunk) with each event of a stream, until it ends or the signal stops it.
export async function stream(path, body, signal, f) {
  const answer = await send(path, {body: {...body, stream: true}, signal});
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    const events = (rest + value).split(/\r?\n\r?\n/);
    rest = events.pop();
    for (const event of events) {
      const data = event.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim()).join("\n");
      if (!data || data === "[DONE]") continue;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message ?? String(chunk.error));
      f(chunk);
    }
  }
}
