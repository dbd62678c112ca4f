/** main: where the page begins. */
import { render } from "preact";
import { followRole } from "./access.js";
import { html } from "./html.js";
import { restWhileHidden } from "./live.js";
import { followAddress } from "./route.js";
import { wearTheme } from "./theme.js";
import { App } from "./view/app.js";

wearTheme();
followAddress();
followRole();
restWhileHidden();
render(html`<${App} />`, document.getElementById("page"));
