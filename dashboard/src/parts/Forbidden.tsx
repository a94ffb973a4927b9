import { Empty } from "../ui/Empty";

/** A screen or tab that the role may not read. */
export function Forbidden({ name, why }: { name: string; why: string }) {
  return <Empty title={name}>{why}</Empty>;
}
