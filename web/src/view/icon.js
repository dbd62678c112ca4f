/** Icon: small drawings beside words; never the only thing that says something. */
import { html } from "../html.js";

const PATHS = {
  source: "M3 8h7M7 4.5 10.5 8 7 11.5M13 3v10",
  destination: "M3 3v10M6 8h7M9.5 4.5 13 8l-3.5 3.5",
  processor: "M8 2.5 12.8 5.2v5.6L8 13.5 3.2 10.8V5.2zM8 6v4M6 8h4",
  dead_letters: "M2.5 4h11v8h-11zM2.5 4.5 8 9l5.5-4.5",
  start: "M5 3.2v9.6L12.5 8z",
  stop: "M4 4h8v8H4z",
  force: "M8 2v6M4.6 4.2a5.2 5.2 0 1 0 6.8 0",
  restart: "M12.8 8A4.8 4.8 0 1 1 11.2 4.4M13 2v3h-3",
  close: "M4 4l8 8M12 4l-8 8",
  search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10zM10.7 10.7 14 14",
  light: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM8 1.5v1.5M8 13v1.5M1.5 8H3M13 8h1.5M3.4 3.4l1 1M11.6 11.6l1 1M3.4 12.6l1-1M11.6 4.4l1-1",
  dark: "M13 9.6A5.4 5.4 0 0 1 6.4 3 5.4 5.4 0 1 0 13 9.6z",
  system: "M2.5 3.5h11v7h-11zM6 13.5h4M8 10.5v3",
  back: "M9.5 3.5 5 8l4.5 4.5",
  warning: "M8 2.2 14.3 13H1.7zM8 6.2v3.2M8 11.2v.3",
  tap: "M8 2.2c2.4 3 3.8 5 3.8 6.9a3.8 3.8 0 0 1-7.6 0c0-1.9 1.4-3.9 3.8-6.9z",
  done: "M3 8.5 6.5 12 13 4.5",
  more: "M8 3.5v.1M8 8v.1M8 12.4v.1",
};

export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 16 16" aria-hidden="true" focusable="false"><path d=${PATHS[name]} /></svg>`;
}
