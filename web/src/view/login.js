/** Login: asks for a token when the server wants one. */
import { useState } from "preact/hooks";
import { html } from "../html.js";
import { enter, session } from "../session.js";
import { useStore } from "../store.js";
import { Dialog } from "./dialog.js";

export function Login() {
  const { refused } = useStore(session);
  const [token, setToken] = useState("");
  const submit = (event) => {
    event.preventDefault();
    if (token.trim()) enter(token.trim());
  };
  return html`<${Dialog} title="This server asks for a token" onClose=${() => {}} closable=${false}>
    <form onSubmit=${submit} class="login">
      <p>Tokens have a role: <em>read</em> to look, <em>operate</em> to start, stop and tap. It is kept in this tab only, until you close it.</p>
      <label for="token">Token</label>
      <input id="token" data-first type="password" autocomplete="off" spellcheck=${false} value=${token} aria-invalid=${refused} aria-describedby="token-error"
        onInput=${(event) => setToken(event.target.value)} />
      <p id="token-error" class="field-error" role="alert">${refused ? "The server refused that token." : ""}</p>
      <div class="dialog-actions"><button class="primary" type="submit">Sign in</button></div>
    </form>
  <//>`;
}
