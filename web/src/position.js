/** position: what a source calls its place, as text where it is text. */

/** The text of a base64 position, or a short form of its bytes where they are not text. */
export function readable(base64) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    if (!/[\u0000-\u0008\u000e-\u001f]/.test(text)) return text;
  } catch {
    // Not text: shown as bytes.
  }
  const hex = [...bytes.slice(0, 16)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
  return bytes.length > 16 ? `${hex} … ${bytes.length} bytes` : hex;
}
