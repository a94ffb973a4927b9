import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import type { Page } from "@playwright/test";

const source = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

export interface Finding {
  id: string;
  help: string;
  nodes: string[];
}

/**
 * Runs axe on the page. The script comes through the debugger, to which the policy of the page does not apply. The guards that keep the focus
 * inside an open menu take it only to pass it on, and the menu lies outside of the landmarks, as a dialog does.
 */
export async function findings(page: Page, isMenuOpen = false): Promise<Finding[]> {
  await page.evaluate(source);
  return page.evaluate(async (isOpen) => {
    const { axe } = window as unknown as {
      axe: {
        run(
          context: object,
          options: object,
        ): Promise<{ violations: { id: string; help: string; nodes: { html: string; failureSummary?: string }[] }[] }>;
      };
    };
    const { violations } = await axe.run(isOpen ? { exclude: [["[data-focus-trap]"]] } : document, {
      resultTypes: ["violations"],
      runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
      rules: { region: { enabled: !isOpen } },
    });
    return violations.map(({ id, help, nodes }) => ({
      id,
      help,
      nodes: nodes.slice(0, 3).map((node) => `${node.html.slice(0, 160)} ${node.failureSummary?.slice(0, 200) ?? ""}`),
    }));
  }, isMenuOpen);
}
