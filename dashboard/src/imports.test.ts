import { readdirSync, readFileSync, statSync } from "node:fs";
import { dirname, join, relative, resolve } from "node:path";
import { describe, expect, test } from "vitest";

const root = new URL(".", import.meta.url).pathname;

function files(folder: string): string[] {
  return readdirSync(folder).flatMap((name) => {
    const path = join(folder, name);
    return statSync(path).isDirectory() ? files(path) : /\.tsx?$/.test(name) ? [path] : [];
  });
}

/** The folder of a file: `ui`, `features/runs`, or the file itself where it lies in no folder. */
function folderOf(path: string): string {
  const [first = "", second = ""] = relative(root, path).split("/");
  return first === "features" ? `features/${second}` : first;
}

const all = files(root).filter((path) => !path.endsWith("schema.gen.ts"));
const imports = all.flatMap((path) => {
  const text = readFileSync(path, "utf8");
  const names = [...text.matchAll(/(?:from|import)\s*\(?"([^"]+)"/g)].map((match) => match[1] ?? "");
  return names.map((name) => ({
    path,
    name,
    to: name.startsWith(".") ? folderOf(resolve(dirname(path), name)) : undefined,
  }));
});

/** Folder → the folders that it may import. */
const MAY: Record<string, readonly string[]> = {
  api: ["api"],
  model: ["api", "model"],
  live: ["api", "model", "live"],
  words: ["api", "model", "words"],
  store: ["api", "model", "live", "store"],
  ui: ["api", "model", "live", "store", "ui", "words"],
  parts: ["api", "model", "live", "parts", "store", "ui", "words"],
  shell: ["api", "model", "live", "parts", "shell", "store", "ui", "words"],
};

describe("imports", () => {
  test("each folder imports only folders below it, and features never import each other", () => {
    const wrong = imports
      .filter(({ to }) => to !== undefined)
      .filter(({ path, to = "" }) => {
        const from = folderOf(path);
        if (path.endsWith(".test.ts") && !to.startsWith("features/")) return false;
        const may = from.startsWith("features/") ? [...(MAY.ui ?? []), "parts", from] : MAY[from];
        return may !== undefined && !may.includes(to);
      })
      .map(({ path, name }) => `${relative(root, path)} imports ${name}`);
    expect(wrong).toEqual([]);
  });

  test("only ui, and the shell's own dialogs, import the widget library", () => {
    const users = new Set(imports.filter(({ name }) => name.startsWith("@ariakit/")).map(({ path }) => folderOf(path)));
    expect([...users].filter((folder) => !["ui", "shell"].includes(folder))).toEqual([]);
  });

  test("no text becomes markup or code", () => {
    const sinks =
      /innerHTML|outerHTML|insertAdjacentHTML|document\.write|dangerouslySetInnerHTML|\beval\(|new Function|srcdoc/;
    const found = all.filter((path) => !path.endsWith("imports.test.ts") && sinks.test(readFileSync(path, "utf8")));
    expect(found).toEqual([]);
  });

  test("localStorage holds preferences alone", () => {
    const users = all.filter(
      (path) => !path.endsWith(".test.ts") && /localStorage|sessionStorage|indexedDB/.test(readFileSync(path, "utf8")),
    );
    expect(users.map((path) => relative(root, path))).toEqual(["store/prefs.ts"]);
  });

  test("files are short", () => {
    const long = all.filter((path) => readFileSync(path, "utf8").split("\n").length > 400);
    expect(long.map((path) => relative(root, path))).toEqual([]);
  });
});
