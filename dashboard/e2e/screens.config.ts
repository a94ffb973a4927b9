import { defineConfig } from "@playwright/test";
import base from "../playwright.config";

/** `npm run screens` writes test-results/screens/index.html, a page of every screen in both themes and two sizes. */
export default defineConfig({
  ...base,
  testDir: ".",
  outputDir: "../test-results/traces",
  workers: 1,
  projects: [{ name: "screens", testMatch: /screens\.shots\.ts/ }],
});
