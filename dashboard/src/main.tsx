import { RouterProvider } from "@tanstack/react-router";
import { createRoot } from "react-dom/client";
import { Provider } from "react-redux";
import { router } from "./routes";
import { connect, store } from "./store";
import "./ui/global.css";

connect();
const root = document.getElementById("root");
if (root) {
  createRoot(root).render(
    <Provider store={store}>
      <RouterProvider router={router} />
    </Provider>,
  );
}
