import { words } from "../../words";
import css from "./Login.module.css";

export function Frame({ children }: { children: React.ReactNode }) {
  return (
    <main className={css.page}>
      <div className={css.card}>
        <div className={css.brand}>
          <i aria-hidden="true" />
          {words.shell.product}
        </div>
        {children}
      </div>
    </main>
  );
}
