// Writes licenses.txt: the packages whose code is in the bundle, with the text of their licenses.
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import type { Plugin } from "vite";

/** The folder of the package that a module belongs to. */
function folderOf(module: string): string | undefined {
  if (!module.includes("node_modules")) return undefined;
  let folder = dirname(module.replace(/^\0/, "").replace(/\?.*$/, ""));
  while (folder.includes("node_modules")) {
    const file = join(folder, "package.json");
    if (existsSync(file) && JSON.parse(readFileSync(file, "utf8")).name) return folder;
    folder = dirname(folder);
  }
  return undefined;
}

function licenseOf(folder: string): string {
  const { name, version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
  const text = file ? readFileSync(join(folder, file), "utf8").trim() : "";
  return `${name} ${version} (${license})\n\n${text}`.trim();
}

export function licenses(): Plugin {
  return {
    name: "licenses",
    apply: "build",
    generateBundle(_, bundle) {
      const folders = new Set<string>();
      for (const chunk of Object.values(bundle)) {
        if (chunk.type !== "chunk") continue;
        for (const module of chunk.moduleIds) {
          const folder = folderOf(module);
          if (folder) folders.add(folder);
        }
      }
      const texts = [...folders].map(licenseOf).sort();
      this.emitFile({
        type: "asset",
        fileName: "licenses.txt",
        source: `${texts.join(`\n\n${"-".repeat(80)}\n\n`)}\n`,
      });
    },
  };
}
