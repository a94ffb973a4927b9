//! Durations for people.

use std::{fmt, time::Duration};

/// Shows a duration in its two largest units: `850ms`, `42s`, `1m 5s`, `11h 51m`, `3d 4h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(pub Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
        match seconds {
            0 if self.0.is_zero() => f.write_str("0s"),
            0 if self.0.as_millis() == 0 => f.write_str("less than 1ms"),
            0 => write!(f, "{}ms", self.0.as_millis()),
            1..60 => write!(f, "{seconds}s"),
            60..3600 => write!(f, "{minutes}m {}s", seconds % 60),
            3600..86_400 => write!(f, "{hours}h {}m", minutes % 60),
            86_400.. => write!(f, "{days}d {}h", hours % 24),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_its_two_largest_units() {
        let shown = [0.0, 0.0004, 0.85, 42.9, 65.0, 3600.0, 42_679.272_739_34, 86_400.0, 400.0 * 86_400.0]
            .map(|seconds| Span(Duration::from_secs_f64(seconds)).to_string());
        let expected =
            ["0s", "less than 1ms", "850ms", "42s", "1m 5s", "1h 0m", "11h 51m", "1d 0h", "400d 0h"];
        assert_eq!(shown, expected);
    }
}
