import { existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { describe, expect, test } from "vitest";

const dist = new URL("../dist/", import.meta.url).pathname;
const KB = 1024;

interface Chunk {
  file: string;
  imports?: string[];
  dynamicImports?: string[];
  css?: string[];
  isEntry?: boolean;
}

/** The files that a chunk needs before it runs. */
function needs(manifest: Record<string, Chunk>, name: string, seen = new Set<string>()): Set<string> {
  if (seen.has(name)) return seen;
  seen.add(name);
  for (const other of manifest[name]?.imports ?? []) needs(manifest, other, seen);
  return seen;
}

const sizes = (manifest: Record<string, Chunk>, names: Iterable<string>, size: (path: string) => number) =>
  [...names].reduce((sum, name) => sum + size(join(dist, manifest[name]?.file ?? "")), 0);
const gzip = (path: string) => gzipSync(readFileSync(path), { level: 9 }).length;
const brotli = (path: string) => statSync(`${path}.br`).size;

describe.skipIf(!existsSync(join(dist, ".vite/manifest.json")))("the built files", () => {
  const read = () => JSON.parse(readFileSync(join(dist, ".vite/manifest.json"), "utf8")) as Record<string, Chunk>;
  const screen = (name: string) => `src/features/${name}.tsx`;
  const first = ["login/Login", "overview/Overview"];

  test.each(first)("the first useful screen %s needs at most 230 KB of gzip and 200 KB of brotli", (name) => {
    const manifest = read();
    const files = new Set([...needs(manifest, "index.html"), ...needs(manifest, screen(name))]);
    expect(sizes(manifest, files, gzip)).toBeLessThanOrEqual(230 * KB);
    expect(sizes(manifest, files, brotli)).toBeLessThanOrEqual(200 * KB);
  });

  test("every further screen needs at most 60 KB, and all style sheets 25 KB", () => {
    const manifest = read();
    const entry = needs(manifest, "index.html");
    for (const name of Object.keys(manifest).filter((one) => one.startsWith("src/features/"))) {
      const own = [...needs(manifest, name)].filter((file) => !entry.has(file));
      expect(sizes(manifest, own, gzip), name).toBeLessThanOrEqual(60 * KB);
    }
    const sheets = readdirSync(join(dist, "assets")).filter((name) => name.endsWith(".css"));
    expect(sheets.reduce((sum, name) => sum + gzip(join(dist, "assets", name)), 0)).toBeLessThanOrEqual(25 * KB);
  });

  test("all files together have at most 2 MB, and every one that is compressed has its original", () => {
    const all = readdirSync(dist, { recursive: true, encoding: "utf8" }).filter((name) =>
      statSync(join(dist, name)).isFile(),
    );
    expect(all.reduce((sum, name) => sum + statSync(join(dist, name)).size, 0)).toBeLessThanOrEqual(2 * KB * KB);
    for (const name of all.filter((one) => one.endsWith(".br"))) expect(all).toContain(name.slice(0, -3));
  });

  test("the page has no inline script or style and names no other host", () => {
    for (const name of ["index.html", "frame.html"]) {
      const html = readFileSync(join(dist, name), "utf8");
      expect(html).not.toMatch(/<script(?![^>]*\bsrc=)/);
      expect(html).not.toMatch(/<style|\bstyle=|\bon\w+=|https?:/);
    }
  });

  test("licenses.txt names the libraries of the bundle", () => {
    const text = readFileSync(join(dist, "licenses.txt"), "utf8");
    for (const name of ["react ", "@reduxjs/toolkit ", "@ariakit/react", "@tanstack/", "lucide-react "])
      expect(text).toContain(name);
  });
});
