// The six shapes of states: ○ idle, ▶ busy, ⏸ waiting, ✓ good, ✕ bad, ◆ doubt.

import type { Tone } from "../model/tones";

const SHAPES: Record<Tone, React.ReactNode> = {
  idle: <circle cx="6" cy="6" r="3.6" fill="none" stroke="currentColor" strokeWidth="1.6" />,
  busy: <path d="M3.5 2.2 10 6l-6.5 3.8z" fill="currentColor" />,
  waiting: <path d="M3.2 2.2h2v7.6h-2zM6.8 2.2h2v7.6h-2z" fill="currentColor" />,
  good: <path d="m2.2 6.4 2.6 2.6 5-5.8" fill="none" stroke="currentColor" strokeWidth="1.8" strokeLinecap="round" />,
  bad: (
    <path
      d="m2.8 2.8 6.4 6.4m0-6.4L2.8 9.2"
      fill="none"
      stroke="currentColor"
      strokeWidth="1.8"
      strokeLinecap="round"
    />
  ),
  doubt: <path d="M6 1.2 10.8 6 6 10.8 1.2 6z" fill="currentColor" />,
};

export function ToneIcon({ tone, size = 12 }: { tone: Tone; size?: number }) {
  return (
    <svg viewBox="0 0 12 12" width={size} height={size} aria-hidden="true" focusable="false">
      {SHAPES[tone]}
    </svg>
  );
}
