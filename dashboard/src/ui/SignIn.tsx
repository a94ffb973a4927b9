import { useRef, useState } from "react";
import type { Problem } from "../api/problem";
import { signIn, type WhoAmI } from "../api/session";
import { words } from "../words";
import { Button } from "./Button";
import field from "./Field.module.css";
import { ProblemView } from "./ProblemView";

/** Sign-in with a key. The key is read from the form, posted once, and kept nowhere. */
export function SignIn({ onDone }: { onDone: (me: WhoAmI) => void }) {
  const form = useRef<HTMLFormElement>(null);
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem>();
  const { login } = words.shell;
  const submit = async () => {
    const values = new FormData(form.current ?? undefined);
    const name = String(values.get("name") ?? "").trim();
    setBusy(true);
    setProblem(undefined);
    const outcome = await signIn({ key: String(values.get("key") ?? "").trim(), ...(name === "" ? {} : { name }) });
    setBusy(false);
    form.current?.reset();
    if (outcome.ok) onDone(outcome.data);
    else setProblem(outcome.problem);
  };
  return (
    <form
      ref={form}
      onSubmit={(event) => {
        event.preventDefault();
        if (!isBusy) void submit();
      }}
      style={{ display: "grid", gap: 14 }}
    >
      <div className={field.field}>
        <label className={field.label} htmlFor="sign-in-key">
          {login.key}
        </label>
        <input
          id="sign-in-key"
          className={field.input}
          name="key"
          type="password"
          autoComplete="current-password"
          spellCheck={false}
          required
          aria-describedby="sign-in-key-help"
        />
        <span id="sign-in-key-help" className={field.help}>
          {login.keyHelp}
        </span>
      </div>
      <div className={field.field}>
        <label className={field.label} htmlFor="sign-in-name">
          {login.name}
        </label>
        <input
          id="sign-in-name"
          className={field.input}
          name="name"
          maxLength={64}
          autoComplete="nickname"
          aria-describedby="sign-in-name-help"
        />
        <span id="sign-in-name-help" className={field.help}>
          {login.nameHelp}
        </span>
      </div>
      {problem && <ProblemView problem={problem.status === 401 ? { ...problem, title: "" } : problem} isInline />}
      <Button look="primary" type="submit" isBusy={isBusy} onClick={() => {}}>
        {login.submit}
      </Button>
    </form>
  );
}
