import { Link } from "@tanstack/react-router";
import { buttonClass } from "../ui/Button";
import { Empty } from "../ui/Empty";
import { words } from "../words";

export function NotFound() {
  return (
    <main>
      <Empty
        title={words.shell.notFound.title}
        actions={
          <Link to="/" className={buttonClass("primary")}>
            {words.shell.notFound.home}
          </Link>
        }
      >
        {words.shell.notFound.text}
      </Empty>
    </main>
  );
}
