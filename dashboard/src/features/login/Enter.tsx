import { Link } from "@tanstack/react-router";
import { useEffect, useState } from "react";
import { signIn } from "../../api/session";
import { buttonClass } from "../../ui/Button";
import { Command } from "../../ui/Text";
import { words } from "../../words";
import { Frame } from "./Frame";
import { useDone } from "./Login";
import css from "./Login.module.css";

const { login } = words.shell;

/** The code of the link. It is taken out of the address at once, so that no history keeps it. */
let code: string | null | undefined;
function takeCode(): string | null {
  if (code === undefined) {
    code = new URLSearchParams(location.hash.slice(1)).get("code");
    history.replaceState(history.state, "", location.pathname);
  }
  const taken = code;
  code = null;
  return taken;
}

/** Sign-in with the one-time code of `postrider dashboard`. */
export function Enter() {
  const done = useDone();
  const [failure, setFailure] = useState<string>();
  // biome-ignore lint/correctness/useExhaustiveDependencies: the code is used once
  useEffect(() => {
    document.title = `${login.title} · ${words.shell.product}`;
    const taken = takeCode();
    if (!taken) {
      setFailure(login.noCode);
      return;
    }
    void signIn({ code: taken }).then((outcome) => {
      if (outcome.ok) done(outcome.data);
      else setFailure(outcome.problem.status === 401 ? login.codeFailed : words.problem.detail(outcome.problem));
    });
  }, []);
  return (
    <Frame>
      <h1>{login.title}</h1>
      {failure === undefined ? (
        <p className={css.muted} role="status">
          {login.enter}
        </p>
      ) : (
        <>
          <p role="alert">{failure}</p>
          <Command>postrider dashboard</Command>
          <Link to="/login" className={buttonClass()}>
            {login.toKey}
          </Link>
        </>
      )}
    </Frame>
  );
}
