import { Outlet, useLocation, useNavigate } from "@tanstack/react-router";
import { useEffect, useRef } from "react";
import { isProblem } from "../api/problem";
import { useWhoamiQuery } from "../api/session";
import { stream, useApp } from "../store";
import { Skeleton } from "../ui/Empty";
import { ProblemView } from "../ui/ProblemView";
import { words } from "../words";
import { Announcer } from "./Announcer";
import { Banner } from "./Banner";
import { Expired } from "./Expired";
import { Nav } from "./Nav";
import css from "./Shell.module.css";
import { TopBar } from "./TopBar";

/** The frame of every screen behind sign-in. */
export function Shell() {
  const { data: me, error, refetch } = useWhoamiQuery();
  const isOver = useApp((state) => state.work.isSessionOver);
  const { pathname, searchStr } = useLocation();
  const isReady = me !== undefined && !isOver;
  useEffect(() => {
    if (isReady) stream.start();
  }, [isReady]);
  useFocusOnMove(pathname);

  if (me === undefined) {
    if (isProblem(error) && error.status === 401) {
      return <ToLogin next={pathname + searchStr} />;
    }
    return (
      <main>{isProblem(error) ? <ProblemView problem={error} onRetry={() => void refetch()} /> : <Skeleton />}</main>
    );
  }
  return (
    <div className={css.app}>
      <a className={css.skip} href="#main">
        {words.shell.skip}
      </a>
      <TopBar me={me} />
      <Nav />
      <main className={css.main} id="main" tabIndex={-1}>
        <Banner />
        <Outlet />
      </main>
      <Announcer />
      {isOver && <Expired tenant={me.tenant_id} />}
    </div>
  );
}

/** To sign-in, once: the address changes while the screen of sign-in is loaded, and that is not where the user wanted to go. */
function ToLogin({ next }: { next: string }) {
  const navigate = useNavigate();
  // biome-ignore lint/correctness/useExhaustiveDependencies: the first address counts
  useEffect(() => {
    void navigate({ to: "/login", search: { next }, replace: true });
  }, []);
  return null;
}

/** Another screen: the focus moves to its beginning, so that keyboards and screen readers start there. */
function useFocusOnMove(pathname: string): void {
  const before = useRef(pathname);
  useEffect(() => {
    if (before.current === pathname) return;
    before.current = pathname;
    document.getElementById("main")?.focus({ preventScroll: true });
  }, [pathname]);
}
