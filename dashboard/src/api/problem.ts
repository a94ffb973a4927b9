// Problems of requests, as the server describes them, and those of the connection.

export interface FieldProblem {
  field: string;
  detail: string;
}

export interface Problem {
  /** 0 when no response came. */
  status: number;
  title: string;
  detail: string;
  requestId?: string;
  errors: FieldProblem[];
  /** Seconds to wait before another try. */
  retryAfter?: number;
  /** Further members, such as `currentState`, `allowed` and `needed_role`. */
  members: Record<string, unknown>;
}

const KNOWN = new Set(["type", "status", "title", "detail", "request_id", "errors"]);

export function problemOf(status: number, body: unknown, retryAfter: string | null): Problem {
  const record = (typeof body === "object" && body !== null ? body : {}) as Record<string, unknown>;
  const text = (name: string) => (typeof record[name] === "string" ? record[name] : undefined);
  const requestId = text("request_id");
  const seconds = retryAfter === null ? Number.NaN : Number(retryAfter);
  return {
    status,
    title: text("title") ?? `Status ${status}`,
    detail: text("detail") ?? "",
    ...(requestId === undefined ? {} : { requestId }),
    ...(Number.isFinite(seconds) ? { retryAfter: seconds } : {}),
    errors: Array.isArray(record.errors) ? (record.errors as FieldProblem[]) : [],
    members: Object.fromEntries(Object.entries(record).filter(([name]) => !KNOWN.has(name))),
  };
}

/** No response came: the server may have carried out the request. */
export function lost(cause: string): Problem {
  return { status: 0, title: "No response", detail: cause, errors: [], members: {} };
}

/** Whether the server may have carried out a request that ended like this. */
export function isUncertain(problem: Problem): boolean {
  return problem.status === 0 || problem.status === 502 || problem.status === 504;
}

export function isProblem(error: unknown): error is Problem {
  return typeof error === "object" && error !== null && "status" in error && "members" in error;
}
