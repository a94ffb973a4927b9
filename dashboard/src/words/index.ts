import { en } from "./en";

/** Every text of the page. Another language is another module of the same type. */
export type Words = typeof en;
export const words: Words = en;
export { list, number, percent, plural } from "./plural";
