import { useNavigate, useSearch } from "@tanstack/react-router";
import { useEffect } from "react";
import { session, type WhoAmI } from "../../api/session";
import { useAppDispatch } from "../../store";
import { sessionResumed } from "../../store/work";
import { SignIn } from "../../ui/SignIn";
import { Command } from "../../ui/Text";
import { words } from "../../words";
import { Frame } from "./Frame";
import css from "./Login.module.css";

const { login } = words.shell;

export function Login() {
  const done = useDone();
  useEffect(() => {
    document.title = `${login.title} · ${words.shell.product}`;
  }, []);
  return (
    <Frame>
      <div>
        <h1>{login.title}</h1>
        <p className={css.muted}>{login.intro}</p>
      </div>
      <SignIn onDone={done} />
      <div className={css.other}>
        {login.noKey}
        <Command>postrider dashboard</Command>
      </div>
    </Frame>
  );
}

/** After sign-in: to the page that was asked for. */
export function useDone(): (me: WhoAmI) => void {
  const dispatch = useAppDispatch();
  const navigate = useNavigate();
  const { next } = useSearch({ strict: false }) as { next?: unknown };
  return (me) => {
    void dispatch(session.util.upsertQueryData("whoami", undefined, me));
    dispatch(sessionResumed());
    // Only places of this dashboard: the router resolves them under its own path.
    const to = typeof next === "string" && /^\/(?![/\\])/.test(next) ? next : "/";
    void navigate({ to: to as "/", replace: true });
  };
}
