import { api } from "../api/base";
import { session } from "../api/session";
import { useAppDispatch } from "../store";
import { sessionResumed } from "../store/work";
import { Dialog } from "../ui/Dialog";
import { SignIn } from "../ui/SignIn";
import { words } from "../words";

/** The session has ended: the page stays, and goes on after another sign-in. */
export function Expired({ tenant }: { tenant: string }) {
  const dispatch = useAppDispatch();
  return (
    <Dialog title={words.shell.expired.title} onClose={() => {}} isFixed foot={null}>
      <p>{words.shell.expired.text}</p>
      <SignIn
        onDone={(me) => {
          // Values of one tenant are not shown to another.
          if (me.tenant_id !== tenant) return location.reload();
          void dispatch(session.util.upsertQueryData("whoami", undefined, me));
          dispatch(sessionResumed());
          dispatch(
            api.util.invalidateTags([
              "Campaign",
              "Campaigns",
              "Run",
              "Runs",
              "Items",
              "Item",
              "InDoubt",
              "Audit",
              "Sessions",
              "History",
            ]),
          );
        }}
      />
    </Dialog>
  );
}
