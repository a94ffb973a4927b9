import { expect, test } from "vitest";
import { command } from "./shell";

test("arguments are quoted for a shell", () => {
  expect(command("campaign", "pause", "spring")).toBe("postrider campaign pause spring");
  expect(command("campaign", "pause", "Spring launch", false, "--phase", "mail")).toBe(
    "postrider campaign pause 'Spring launch' --phase mail",
  );
  expect(command("in-doubt", "resolve", "x", "--note", "it's $(here) `now`")).toBe(
    "postrider in-doubt resolve x --note 'it'\\''s $(here) `now`'",
  );
  expect(command("a", "")).toBe("postrider a ''");
});
