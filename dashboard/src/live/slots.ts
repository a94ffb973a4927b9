// Browsers allow six HTTP/1.1 connections per host. At most four tabs of a browser hold a stream, so that requests find a connection.

const PLACES = 4;

/** Takes one of the places, until the returned function is called. Without locks, or with a free place, there always is one. */
export async function takeSlot(): Promise<(() => void) | undefined> {
  if (!("locks" in navigator)) return () => {};
  for (let n = 0; n < PLACES; n++) {
    const release = await tryLock(`postrider-stream-${n}`);
    if (release) return release;
  }
  return undefined;
}

function tryLock(name: string): Promise<(() => void) | undefined> {
  return new Promise((taken) => {
    navigator.locks
      .request(name, { ifAvailable: true }, (lock) => {
        if (lock === null) {
          taken(undefined);
          return undefined;
        }
        return new Promise<void>((release) => taken(release));
      })
      // A page that is being closed may not lock.
      .catch(() => taken(undefined));
  });
}
