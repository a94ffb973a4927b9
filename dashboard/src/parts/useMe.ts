import { type Role, useWhoamiQuery } from "../api/session";
import { words } from "../words";

const RANKS: Record<Role, number> = { viewer: 0, operator: 1, admin: 2 };

/** The role of the session, and why it may not do something. The server enforces it. */
export function useMe() {
  const { data: me } = useWhoamiQuery();
  const why = (needed: Role) =>
    me && RANKS[me.role] < RANKS[needed] ? words.problem.needsRole(needed, me.role) : undefined;
  return { me, whyNot: why };
}
