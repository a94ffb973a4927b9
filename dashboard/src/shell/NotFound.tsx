import { Link } from "@tanstack/react-router";
import { buttonClass } from "../ui/Button";
import { Empty } from "../ui/Empty";
import { Page } from "../ui/Page";
import { words } from "../words";
import css from "./Shell.module.css";

export function NotFound() {
  return (
    <main className={css.main}>
      <Page title={words.shell.notFound.title}>
        <Empty
          title={words.shell.notFound.text}
          actions={
            <Link to="/" className={buttonClass("primary")}>
              {words.shell.notFound.home}
            </Link>
          }
        />
      </Page>
    </main>
  );
}
