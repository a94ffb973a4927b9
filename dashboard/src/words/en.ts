import { campaigns } from "./en/campaigns";
import { inDoubt } from "./en/inDoubt";
import { items } from "./en/items";
import { overview } from "./en/overview";
import { runs } from "./en/runs";
import { settings } from "./en/settings";
import { shell } from "./en/shell";
import { states } from "./en/states";
import { ui } from "./en/ui";

export const en = { ...ui, shell, states, overview, campaigns, runs, items, inDoubt, settings };
