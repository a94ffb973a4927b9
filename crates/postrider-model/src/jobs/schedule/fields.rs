//! Parser of the five fields of a cron expression.
//!
//! The evaluator behind [`Cron`](super::Cron) accepts invalid texts (`1,,2`, `1MON`, a field of seconds in front).
//! So this parser checks each field, names the field in its errors, and passes numbers to the evaluator.

/// One of the five fields.
struct Field {
    name: &'static str,
    min: u8,
    max: u8,
    /// Names for numbers, from `min` on.
    names: &'static [&'static str],
}

const FIELDS: [Field; 5] = [
    Field { name: "minute", min: 0, max: 59, names: &[] },
    Field { name: "hour", min: 0, max: 23, names: &[] },
    Field { name: DAY, min: 1, max: 31, names: &[] },
    Field {
        name: "month",
        min: 1,
        max: 12,
        names: &["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"],
    },
    // Seven is Sunday too.
    Field { name: WEEKDAY, min: 0, max: 7, names: &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"] },
];

const DAY: &str = "day";
const WEEKDAY: &str = "weekday";
const SUNDAY_AT_THE_END: u8 = 7;

/// Rewrites names as numbers, or returns the problem of the expression.
pub(super) fn normalize(text: &str) -> Result<String, String> {
    let input: Vec<&str> = text.split_ascii_whitespace().collect();
    match input.len() {
        5 => {}
        6 | 7 => {
            return Err(format!("it has {} fields; seconds and years cannot be given", input.len()));
        }
        1 => return Err("it has one field instead of five".to_owned()),
        other => return Err(format!("it has {other} fields instead of five")),
    }
    let mut numbers = Vec::with_capacity(FIELDS.len());
    for (field, input) in FIELDS.iter().zip(input) {
        let items: Result<Vec<_>, _> = input.split(',').map(|item| field.item(item)).collect();
        numbers.push(items?.join(","));
    }
    Ok(numbers.join(" "))
}

impl Field {
    /// One item of the field's list.
    fn item(&self, item: &str) -> Result<String, String> {
        if item.is_empty() {
            return Err(format!("the {} has an empty place in its list", self.name));
        }
        if let Some((range, step)) = item.split_once('/') {
            return self.stepped(range, step);
        }
        if let Some(special) = self.special(item)? {
            return Ok(special);
        }
        self.range(item)
    }

    /// `*/5`, `10-40/5`.
    fn stepped(&self, range: &str, step: &str) -> Result<String, String> {
        if range != "*" && !range.contains('-') {
            return Err(format!(
                "the {} `{}/{}` has a step without a range; write `*/…` or `{}-{}/…`",
                self.name,
                range.escape_debug(),
                step.escape_debug(),
                self.min,
                self.max
            ));
        }
        match number(step) {
            Some(step) if step > 0 && step <= self.max => Ok(format!("{}/{step}", self.range(range)?)),
            _ => Err(format!(
                "the {} has the step `{}`, and it must be a number from 1 to {}",
                self.name,
                step.escape_debug(),
                self.max
            )),
        }
    }

    /// Items that depend on the month: `L`, `LW` and `15W` as a day, `MON#2` and `FRIL` as a weekday.
    fn special(&self, item: &str) -> Result<Option<String>, String> {
        let upper = item.to_ascii_uppercase();
        match self.name {
            DAY if upper == "L" || upper == "LW" => Ok(Some(upper)),
            DAY => match upper.strip_suffix('W') {
                Some(day) => Ok(Some(format!("{}W", self.value(day)?))),
                None => Ok(None),
            },
            WEEKDAY => {
                if let Some((weekday, nth)) = upper.split_once('#') {
                    return match number(nth) {
                        Some(nth) if (1..=5).contains(&nth) => {
                            Ok(Some(format!("{}#{nth}", self.value(weekday)? % SUNDAY_AT_THE_END)))
                        }
                        _ => Err("the weekday has no such place in the month; write `MON#1` to `MON#5`, or `MONL` for the last one".to_owned()),
                    };
                }
                match upper.strip_suffix('L') {
                    Some(weekday) => Ok(Some(format!("{}L", self.value(weekday)? % SUNDAY_AT_THE_END))),
                    None => Ok(None),
                }
            }
            _ => Ok(None),
        }
    }

    /// `*`, `5`, `MON-FRI`.
    fn range(&self, range: &str) -> Result<String, String> {
        if range == "*" {
            return Ok("*".to_owned());
        }
        let Some((from, to)) = range.split_once('-') else {
            return Ok(self.value(range)?.to_string());
        };
        let (first, mut last) = (self.value(from)?, self.value(to)?);
        if self.name == WEEKDAY && last == 0 && first > 0 {
            last = SUNDAY_AT_THE_END;
        }
        if first > last {
            return Err(format!(
                "the {} `{range}` ends before it begins; write `{}-{},{}-{}`",
                self.name, first, self.max, self.min, last
            ));
        }
        Ok(format!("{first}-{last}"))
    }

    /// A number or a name.
    fn value(&self, text: &str) -> Result<u8, String> {
        let name = self.names.iter().zip(self.min..).find(|(name, _)| name.eq_ignore_ascii_case(text));
        let value = name.map(|(_, value)| value).or_else(|| number(text));
        value.filter(|value| (self.min..=self.max).contains(value)).ok_or_else(|| {
            let names = match self.names {
                [first, .., last] => format!(", or from {first} to {last}"),
                _ => String::new(),
            };
            format!(
                "the {} `{}` is not from {} to {}{names}",
                self.name,
                text.escape_debug(),
                self.min,
                self.max
            )
        })
    }
}

/// A number of one or two digits.
fn number(text: &str) -> Option<u8> {
    let plain = (1..=2).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| plain)
}
