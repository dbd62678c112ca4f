/** build: the page into one script and one style sheet, byte for byte the same wherever it is built. */
import { copyFile, mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const HERE = dirname(fileURLToPath(import.meta.url));
const TO = process.argv[2] ?? join(HERE, "..", "conduit_py", "server", "page");
const PACKAGES = ["preact", "htm", "@dagrejs/dagre", "@dagrejs/graphlib", "uplot"];

async function main() {
  await rm(TO, { recursive: true, force: true });
  await mkdir(TO, { recursive: true });
  await build({
    absWorkingDir: HERE,
    entryPoints: { page: "src/main.js" },
    outdir: TO,
    bundle: true,
    format: "esm",
    target: ["chrome123", "firefox120", "safari17.5"],
    minify: true,
    legalComments: "none",
    charset: "utf8",
  });
  await build({ absWorkingDir: HERE, entryPoints: { page: "styles/page.css" }, outdir: TO, bundle: true, minify: true, legalComments: "none", charset: "utf8" });
  for (const name of ["index.html", "favicon.svg"]) await copyFile(join(HERE, name), join(TO, name));
  await writeFile(join(TO, "licences.txt"), (await Promise.all(PACKAGES.map(licence))).join("\n"));
}

/** A package with its version and the text of its licence, as that asks for. */
async function licence(name) {
  const folder = join(HERE, "node_modules", name);
  const { version } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
  const text = await readFile(join(folder, "LICENSE"), "utf8");
  return `${name} ${version}\n${"-".repeat(72)}\n${text.trim()}\n`;
}

await main();
