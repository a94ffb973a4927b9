import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";
import { licenses } from "./scripts/licenses.ts";

/** The server that `npm run dev` calls: `POSTRIDER_URL=http://127.0.0.1:8080 npm run dev`. */
const server = process.env.POSTRIDER_URL ?? "http://127.0.0.1:8080";

export default defineConfig({
  base: "/ui/",
  plugins: [react(), licenses()],
  build: {
    // Browsers that have light-dark(), so that the style sheets stay as written.
    target: ["chrome123", "firefox128", "safari17.5"],
    manifest: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 900,
  },
  server: { proxy: { "/api": { target: server }, "/openapi.json": { target: server } } },
  test: {
    include: ["src/**/*.test.ts", "src/**/*.test.tsx"],
    environment: "node",
    // Node 20 has JSON.parse with source behind a flag. Browsers have it without one.
    execArgv: process.versions.node.startsWith("20.") ? ["--harmony-json-parse-with-source"] : [],
  },
});
