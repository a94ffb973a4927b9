import { useApp } from "../store";
import { Button } from "../ui/Button";
import { Dialog } from "../ui/Dialog";
import { words } from "../words";
import css from "./Shell.module.css";
import { SCREENS } from "./screens";

const { keys } = words.shell;

export function Help({ onClose }: { onClose: () => void }) {
  const isOn = useApp((state) => state.prefs.shortcuts);
  const rows: [string, string[]][] = [
    [keys.search, ["/", "Ctrl K"]],
    [keys.help, ["?"]],
    [keys.theme, ["t"]],
    [keys.move, ["j", "k"]],
    [keys.select, ["x"]],
    [keys.open, ["Enter"]],
    [keys.submit, ["Ctrl Enter"]],
    [keys.close, ["Esc"]],
    ...SCREENS.map((screen): [string, string[]] => [keys.go(screen.name), ["g", screen.key]]),
  ];
  return (
    <Dialog title={keys.title} onClose={onClose} foot={<Button onClick={onClose}>{words.dialog.close}</Button>}>
      <p>{isOn ? keys.note : keys.isOff}</p>
      <div className={css.keys}>
        {rows.map(([name, pressed]) => (
          <Row key={name} name={name} pressed={pressed} />
        ))}
      </div>
      <p>{keys.docs}</p>
    </Dialog>
  );
}

function Row({ name, pressed }: { name: string; pressed: string[] }) {
  return (
    <>
      <span>{name}</span>
      <span>
        {pressed.map((key) => (
          <kbd key={key}>{key}</kbd>
        ))}
      </span>
    </>
  );
}
