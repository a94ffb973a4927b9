import { Outlet } from "@tanstack/react-router";
import { Toasts } from "../ui/Toasts";

export function Root() {
  return (
    <>
      <Outlet />
      <Toasts />
    </>
  );
}
