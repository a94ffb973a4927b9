import { defineConfig } from "@playwright/test";

/** The browser of the system: nothing is downloaded. */
const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";

export const browser = {
  executablePath,
  args: [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
  ],
};

export default defineConfig({
  testDir: "e2e",
  outputDir: "test-results",
  timeout: 90_000,
  expect: { timeout: 15_000 },
  workers: 2,
  forbidOnly: true,
  reporter: [["list"]],
  use: {
    browserName: "chromium",
    launchOptions: browser,
    viewport: { width: 1280, height: 860 },
    timezoneId: "Europe/Berlin",
    trace: "retain-on-failure",
  },
  projects: [
    { name: "behaviour", testMatch: /.*\.spec\.ts/, testIgnore: /budget\.spec\.ts/ },
    // Measured alone, when nothing else uses the processor.
    { name: "budget", testMatch: /budget\.spec\.ts/, dependencies: ["behaviour"], fullyParallel: false },
  ],
});
