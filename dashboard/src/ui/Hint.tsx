import { Tooltip, TooltipAnchor, TooltipProvider } from "@ariakit/react";
import css from "./Hint.module.css";

/** A short text on hover and focus. */
export function Hint({
  text,
  children,
  isDescription = false,
}: {
  text: string;
  children: React.ReactElement<Record<string, unknown>>;
  isDescription?: boolean;
}) {
  return (
    <TooltipProvider timeout={400} placement="bottom">
      <TooltipAnchor render={children} {...(isDescription ? { "aria-description": text } : {})} />
      <Tooltip className={css.hint} gutter={6} portal>
        {text}
      </Tooltip>
    </TooltipProvider>
  );
}
