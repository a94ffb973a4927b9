import { Eye, EyeOff } from "lucide-react";
import { useEffect, useState } from "react";
import { words } from "../words";
import { Button } from "./Button";
import { TextField } from "./Field";
import { CopyButton } from "./Text";

/** A secret that the server shows once. It lives in this component alone, and leaving the page asks first. */
export function SecretOnce({ label, secret }: { label: string; secret: string }) {
  const [isShown, setShown] = useState(false);
  useEffect(() => {
    const ask = (event: BeforeUnloadEvent) => event.preventDefault();
    addEventListener("beforeunload", ask);
    return () => removeEventListener("beforeunload", ask);
  }, []);
  return (
    <div style={{ display: "flex", gap: 4, alignItems: "end" }}>
      <div style={{ flex: 1 }}>
        <TextField
          label={label}
          help={words.text.secretOnce}
          type={isShown ? "text" : "password"}
          value={secret}
          onChange={() => {}}
          readOnly
          spellCheck={false}
          autoComplete="off"
        />
      </div>
      <Button label={isShown ? words.text.hide : words.text.reveal} onClick={() => setShown(!isShown)}>
        {isShown ? <EyeOff size={16} aria-hidden="true" /> : <Eye size={16} aria-hidden="true" />}
      </Button>
      <CopyButton text={secret} label={words.text.copy(label)} />
    </div>
  );
}
