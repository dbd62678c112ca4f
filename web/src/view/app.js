/** App: the frame of every page, and which page is in it. */
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { REASON_ID, useRefusal } from "../access.js";
import { html } from "../html.js";
import { useKeys } from "../keys.js";
import { watch } from "../live.js";
import { go, href, route } from "../route.js";
import { session } from "../session.js";
import { useStore } from "../store.js";
import { turnTheme } from "../theme.js";
import { ConnectionBanner } from "./connection.js";
import { Empty } from "./empty.js";
import { Fleet } from "./fleet.js";
import { Letter } from "./letter.js";
import { LettersPage } from "./letters.js";
import { Login } from "./login.js";
import { Notices } from "./notices.js";
import { PipelinePage } from "./pipeline.js";
import { Question } from "./question.js";
import { Shortcuts } from "./shortcuts.js";
import { TopBar } from "./top-bar.js";

export function App() {
  const at = useStore(route);
  const { asking } = useStore(session);
  const refused = useRefusal();
  const [help, setHelp] = useState(false);
  useEffect(() => watch(at.page === "pipeline" ? at.id : null), [at.page, at.id]);
  useFocusOnArrival(at);
  useKeys({
    "?": () => setHelp(true),
    "g p": () => go(href([])),
    "g d": () => go(href(["dead-letters"])),
    c: turnTheme,
    "/": () => document.querySelector("[data-filter]")?.focus(),
  });
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to content</a>
    <${TopBar} page=${at.page} onHelp=${() => setHelp(true)} />
    <${ConnectionBanner} />
    <main id="main" tabindex="-1"><${Page} at=${at} /></main>
    <p id=${REASON_ID} hidden>${refused}</p>
    <${Question} />
    <${Shortcuts} open=${help} onClose=${() => setHelp(false)} />
    ${asking && html`<${Login} />`}
    <${Notices} />
  `;
}

function Page({ at }) {
  if (at.page === "fleet") return html`<${Fleet} query=${at.query} />`;
  if (at.page === "pipeline") return html`<${PipelinePage} key=${at.id} at=${at} />`;
  if (at.page === "letters") return html`<${LettersPage} query=${at.query} />`;
  if (at.page === "letter") return html`<${Letter} key=${at.id} id=${at.id} />`;
  return html`<h1 class="unseen" tabindex="-1">Nothing here</h1>
    <${Empty} title="There is no such page" text="The address leads nowhere.">
      <a class="button" href=${href([])}>All pipelines</a>
    <//>`;
}

/** The address after # is the page's own, so the link cannot be left to the browser. */
function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

/** Whoever goes to another page begins at its heading, at once: a key that was pressed since may have moved the focus on. */
function useFocusOnArrival(at) {
  const here = [at.page, at.id ?? "", at.tab ?? ""].join("/");
  const last = useRef(here);
  useLayoutEffect(() => {
    if (last.current === here) return;
    last.current = here;
    scrollTo(0, 0);
    document.querySelector("main h1")?.focus({ preventScroll: true });
  }, [here]);
}
