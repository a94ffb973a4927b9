import { X } from "lucide-react";
import { useEffect } from "react";
import { useApp, useAppDispatch } from "../store";
import { type Toast, toastClosed } from "../store/work";
import { words } from "../words";
import { Button } from "./Button";
import { ToneSquare } from "./Chip";
import { Text } from "./Text";
import css from "./Toasts.module.css";

const SHOWN_MS = 8_000;

/** Receipts and problems of actions, announced politely. */
export function Toasts() {
  const toasts = useApp((state) => state.work.toasts);
  return (
    <div className={css.toasts} role="status" aria-live="polite" aria-relevant="additions" data-toasts>
      {toasts.map((toast) => (
        <One key={toast.id} toast={toast} />
      ))}
    </div>
  );
}

function One({ toast }: { toast: Toast }) {
  const dispatch = useAppDispatch();
  const { id, isSticky } = toast;
  useEffect(() => {
    if (isSticky) return;
    const timer = setTimeout(() => dispatch(toastClosed(id)), SHOWN_MS);
    return () => clearTimeout(timer);
  }, [id, isSticky, dispatch]);
  return (
    <div className={css.toast}>
      <ToneSquare tone={toast.tone} />
      <strong>
        <Text>{toast.title}</Text>
      </strong>
      <Button look="quiet" isSmall label={words.dialog.close} onClick={() => dispatch(toastClosed(id))}>
        <X size={14} aria-hidden="true" />
      </Button>
      {toast.detail && (
        <p>
          <Text>{toast.detail}</Text>
        </p>
      )}
    </div>
  );
}
