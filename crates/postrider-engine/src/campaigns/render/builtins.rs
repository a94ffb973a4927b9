//! The filters and tests that a template may use, each with its limits.
//!
//! The environment starts empty. MiniJinja's own builtins are made for authors who are trusted: some allocate as much as an
//! argument says, some panic. Therefore each one is called through [`bounded`], which charges its input and its result and first
//! checks the arguments that decide how large the result becomes.

use minijinja::{
    Environment, Error, ErrorKind, State, UndefinedBehavior, Value, filters, tests,
    value::{Kwargs, Rest, ValueKind, ValueOrKwargs},
};

use super::budget::{ENTRIES_MAX, VALUE_MAX, charge, exceeded};

/// The largest width, precision or number of decimals that a template may ask for.
const DIGITS_MAX: usize = 100;
/// Most characters that `trim` strips.
const TRIM_MAX: usize = 100;
/// Work of a builtin that compares entries with each other, as a multiple of their weight: the logarithm of their number.
const COMPARING: usize = 16;

/// Checks the arguments of a builtin, the value that it is applied to being the first.
type Check = fn(&[Value]) -> Result<(), Error>;

/// How a filter is bounded.
enum Bound {
    /// The result is at most a few times as large as the input.
    Proportional,
    /// This check passes first.
    Checked(Check),
    /// It goes through the entries of a list, or the characters of a text.
    Entries,
    /// It compares the entries of a list.
    Comparing,
}

macro_rules! builtins {
    ($($name:literal => $function:expr, $bound:expr;)+) => {
        vec![$(($name, Value::from_function($function), $bound)),+]
    };
}

/// Every filter that a template may name.
fn filters() -> Vec<(&'static str, Value, Bound)> {
    use Bound::{Checked, Comparing, Entries, Proportional};
    builtins! {
        "abs" => filters::abs, Proportional;
        "attr" => filters::attr, Proportional;
        "batch" => filters::batch, Checked(check_portions);
        "bool" => filters::bool, Proportional;
        "capitalize" => filters::capitalize, Proportional;
        "count" => filters::length, Proportional;
        "d" => filters::default, Proportional;
        "default" => filters::default, Proportional;
        "dictsort" => filters::dictsort, Comparing;
        "e" => filters::escape, Proportional;
        "escape" => filters::escape, Proportional;
        "first" => filters::first, Proportional;
        "float" => filters::float, Proportional;
        "format" => filters::format, Checked(check_format);
        "groupby" => filters::groupby, Comparing;
        "int" => filters::int, Proportional;
        "items" => filters::items, Entries;
        "join" => filters::join, Checked(check_join);
        "last" => filters::last, Proportional;
        "length" => filters::length, Proportional;
        "lines" => filters::lines, Checked(check_lines);
        "list" => filters::list, Entries;
        "lower" => filters::lower, Proportional;
        "map" => filters::map, Checked(check_map);
        "max" => filters::max, Comparing;
        "min" => filters::min, Comparing;
        "reject" => filters::reject, Entries;
        "rejectattr" => filters::rejectattr, Entries;
        "replace" => filters::replace, Checked(check_replace);
        "reverse" => filters::reverse, Proportional;
        "round" => filters::round, Checked(check_round);
        "safe" => filters::safe, Proportional;
        "select" => filters::select, Entries;
        "selectattr" => filters::selectattr, Entries;
        "slice" => filters::slice, Checked(check_portions);
        "sort" => filters::sort, Comparing;
        "split" => filters::split, Checked(check_split);
        "string" => filters::string, Proportional;
        "sum" => filters::sum, Checked(check_sum);
        "title" => filters::title, Proportional;
        "trim" => filters::trim, Checked(check_trim);
        "unique" => filters::unique, Comparing;
        "upper" => filters::upper, Proportional;
        "urlencode" => filters::urlencode, Proportional;
    }
}

/// Every test that a template may name. Their results are small; only their input is charged.
fn tests() -> Vec<(&'static str, Value)> {
    builtins! {
        "boolean" => tests::is_boolean, ();
        "defined" => tests::is_defined, ();
        "divisibleby" => divisible_by, ();
        "endingwith" => tests::is_endingwith, ();
        "eq" => tests::is_eq, ();
        "equalto" => tests::is_eq, ();
        "even" => tests::is_even, ();
        "false" => tests::is_false, ();
        "float" => tests::is_float, ();
        "ge" => tests::is_ge, ();
        "greaterthan" => tests::is_gt, ();
        "gt" => tests::is_gt, ();
        "in" => tests::is_in, ();
        "int" => tests::is_integer, ();
        "integer" => tests::is_integer, ();
        "iterable" => tests::is_iterable, ();
        "le" => tests::is_le, ();
        "lessthan" => tests::is_lt, ();
        "lower" => tests::is_lower, ();
        "lt" => tests::is_lt, ();
        "mapping" => tests::is_mapping, ();
        "ne" => tests::is_ne, ();
        "none" => tests::is_none, ();
        "number" => tests::is_number, ();
        "odd" => tests::is_odd, ();
        "sameas" => tests::is_sameas, ();
        "sequence" => tests::is_sequence, ();
        "startingwith" => tests::is_startingwith, ();
        "string" => tests::is_string, ();
        "true" => tests::is_true, ();
        "undefined" => tests::is_undefined, ();
        "upper" => tests::is_upper, ();
    }
    .into_iter()
    .map(|(name, test, ())| (name, test))
    .collect()
}

/// Names of the filters that a template may use, sorted.
pub(super) fn filter_names() -> Vec<&'static str> {
    filters().into_iter().map(|(name, ..)| name).collect()
}

/// Names of the tests that a template may use, sorted.
pub(super) fn test_names() -> Vec<&'static str> {
    tests().into_iter().map(|(name, _)| name).collect()
}

/// Adds everything that a rewritten template may call to an empty environment. `super::grammar` writes the names that begin with `_`
/// in the place of operators; a template cannot name them.
pub(super) fn install(environment: &mut Environment<'static>) {
    for (name, function, bound) in filters() {
        environment.add_filter(name, bounded(function, bound));
    }
    for (name, function) in tests() {
        environment.add_test(name, bounded(function, Bound::Proportional));
    }
    environment.add_filter("_add", operator(add));
    environment.add_filter("_concat", operator(concat));
    environment.add_filter("_eq", operator(|one, other| Ok(Value::from(one == other))));
    environment.add_filter("_ge", operator(|one, other| Ok(Value::from(one >= other))));
    environment.add_filter("_gt", operator(|one, other| Ok(Value::from(one > other))));
    environment.add_filter("_in", operator(is_in));
    environment.add_filter("_item", item);
    environment.add_filter("_le", operator(|one, other| Ok(Value::from(one <= other))));
    environment.add_filter("_lt", operator(|one, other| Ok(Value::from(one < other))));
    environment.add_filter("_mul", operator(multiply));
    environment.add_filter("_ne", operator(|one, other| Ok(Value::from(one != other))));
    environment.add_filter("_part", part);
    environment.add_filter("_range", range);
    environment.add_filter("_value", |state: &mut State<'_, '_>, value: Value| {
        charge(state, &value, 1)?;
        Ok::<_, Error>(value)
    });
}

/// A builtin whose input and result are charged, and whose arguments are checked first.
fn bounded(
    function: Value,
    bound: Bound,
) -> impl Fn(&mut State<'_, '_>, Rest<ValueOrKwargs>) -> Result<Value, Error> + Send + Sync + 'static {
    move |state, input| {
        let input = input.into_values();
        let factor = if matches!(bound, Bound::Comparing) { COMPARING } else { 1 };
        for value in &input {
            charge(state, value, factor)?;
        }
        match bound {
            Bound::Proportional => {}
            Bound::Checked(check) => check(&input)?,
            Bound::Entries | Bound::Comparing => check_entries(&input)?,
        }
        let result = function.call(state, &input)?;
        // A lazy list would be made again, without a charge, each time that it is used.
        let result = match result.kind() {
            ValueKind::Iterable => {
                let entries: Vec<Value> = result.try_iter()?.take(ENTRIES_MAX + 1).collect();
                at_most_entries(entries.len())?;
                Value::from(entries)
            }
            _ => result,
        };
        charge(state, &result, 1)?;
        Ok(result)
    }
}

/// An operator between two defined values.
fn operator(
    apply: fn(&Value, &Value) -> Result<Value, Error>,
) -> impl Fn(&mut State<'_, '_>, Value, Value) -> Result<Value, Error> + Send + Sync + 'static {
    move |state, one, other| {
        for value in [&one, &other] {
            if value.is_undefined() && state.undefined_behavior() == UndefinedBehavior::Strict {
                return Err(Error::from(ErrorKind::UndefinedError));
            }
            charge(state, value, 1)?;
        }
        let result = apply(&one, &other)?;
        charge(state, &result, 1)?;
        Ok(result)
    }
}

fn invalid(problem: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem.into())
}

fn at_most_bytes(bytes: usize) -> Result<(), Error> {
    if bytes > VALUE_MAX {
        return Err(exceeded(format!("a value takes more than {VALUE_MAX} bytes")));
    }
    Ok(())
}

fn at_most_entries(entries: usize) -> Result<(), Error> {
    if entries > ENTRIES_MAX {
        return Err(exceeded(format!("a list has more than {ENTRIES_MAX} entries")));
    }
    Ok(())
}

/// Bytes of an argument as text; of named arguments, of all their values.
fn text_bytes(value: &Value) -> usize {
    match Kwargs::try_from(value.clone()) {
        Ok(named) => {
            named.args().map(|name| named.peek::<Value>(name).map_or(0, |value| text_bytes(&value))).sum()
        }
        Err(_) => value.as_str().map_or_else(|| value.to_string().len(), str::len),
    }
}

/// A positional argument, or the one of that name.
fn argument(input: &[Value], position: usize, name: &str) -> Option<Value> {
    let named = input.last().and_then(|last| Kwargs::try_from(last.clone()).ok());
    match input.get(position) {
        Some(value) if !value.is_kwargs() => Some(value.clone()),
        _ => named?.peek::<Option<Value>>(name).ok().flatten(),
    }
}

/// Checks the number of entries, and the work of the other arguments, which are evaluated for each entry (a path, for example).
fn check_entries(input: &[Value]) -> Result<(), Error> {
    let entries = input.first().and_then(Value::len).unwrap_or(0);
    at_most_entries(entries)?;
    let others: usize = input.iter().skip(1).map(text_bytes).sum();
    at_most_bytes(entries.saturating_mul(others))
}

fn check_map(input: &[Value]) -> Result<(), Error> {
    check_entries(input)?;
    match input.get(1).and_then(Value::as_str) {
        Some(name) if name.starts_with('_') => {
            Err(Error::new(ErrorKind::UnknownFilter, format!("filter {name} is unknown")))
        }
        _ => Ok(()),
    }
}

fn check_join(input: &[Value]) -> Result<(), Error> {
    let entries = input.first().and_then(Value::len).unwrap_or(0);
    at_most_entries(entries)?;
    let between: usize = input.iter().skip(1).map(text_bytes).sum();
    let own = input.first().map_or(0, text_bytes);
    at_most_bytes(entries.saturating_mul(between).saturating_add(own))
}

fn check_replace(input: &[Value]) -> Result<(), Error> {
    let [text, from, to, ..] = input else { return Ok(()) };
    let (text, from) = (text.to_string(), from.to_string());
    let added = text.matches(&from).count().saturating_mul(text_bytes(to));
    at_most_bytes(text.len().saturating_add(added))
}

fn check_split(input: &[Value]) -> Result<(), Error> {
    let Some(text) = input.first().and_then(Value::as_str) else { return Ok(()) };
    at_most_entries(match input.get(1).and_then(Value::as_str) {
        Some(separator) => text.matches(separator).count() + 1,
        None => text.split_whitespace().count(),
    })
}

fn check_lines(input: &[Value]) -> Result<(), Error> {
    at_most_entries(input.first().and_then(Value::as_str).map_or(0, |text| text.lines().count()))
}

/// `batch` and `slice`: the number of portions, or of entries in each, and how often a filler is repeated.
fn check_portions(input: &[Value]) -> Result<(), Error> {
    at_most_entries(input.first().and_then(Value::len).unwrap_or(0))?;
    let count = argument(input, 1, "count").and_then(|count| count.as_usize()).unwrap_or(usize::MAX);
    at_most_entries(count)?;
    let filler = argument(input, 2, "fill_with").map_or(0, |filler| text_bytes(&filler));
    at_most_bytes(count.saturating_mul(filler))
}

fn check_trim(input: &[Value]) -> Result<(), Error> {
    match input.get(1).map_or(0, text_bytes) {
        bytes if bytes > TRIM_MAX => Err(exceeded(format!("`trim` strips at most {TRIM_MAX} characters"))),
        _ => Ok(()),
    }
}

fn check_round(input: &[Value]) -> Result<(), Error> {
    let decimals = argument(input, 1, "precision").map_or(Ok(0), i64::try_from)?;
    if usize::try_from(decimals.unsigned_abs()).is_ok_and(|decimals| decimals <= DIGITS_MAX) {
        return Ok(());
    }
    Err(exceeded(format!("`round` keeps at most {DIGITS_MAX} decimals")))
}

/// `sum` adds numbers. With a text or a list as its start, it would build ever longer ones.
fn check_sum(input: &[Value]) -> Result<(), Error> {
    check_entries(input)?;
    match argument(input, 2, "start") {
        Some(start) if !start.is_number() => Err(invalid("`sum` starts with a number")),
        _ => Ok(()),
    }
}

/// Checks widths, precisions and the total length, because several fields can name the same argument.
fn check_format(input: &[Value]) -> Result<(), Error> {
    let Some(format) = input.first().and_then(Value::as_str) else { return Ok(()) };
    let mut fields = 0_usize;
    for field in format.split('%').skip(1) {
        fields += 1;
        // `(key)`, flags, width, `.`, precision: MiniJinja reads them in this order.
        let spec = match field.strip_prefix('(') {
            Some(named) => named.split_once(')').map_or("", |(_, spec)| spec),
            None => field,
        };
        let spec = spec.trim_start_matches(['#', '0', '-', ' ', '+']);
        let (width, spec) = leading_number(spec);
        let (precision, _) = leading_number(spec.strip_prefix('.').unwrap_or_default());
        if width.max(precision) > DIGITS_MAX {
            return Err(exceeded(format!("`format` has a width or precision above {DIGITS_MAX}")));
        }
    }
    let arguments: usize = input.iter().skip(1).map(text_bytes).sum();
    at_most_bytes(format.len().saturating_add(fields.saturating_mul(arguments + 2 * DIGITS_MAX)))
}

/// The number that a text begins with, and the rest of it.
fn leading_number(text: &str) -> (usize, &str) {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = text.split_at(digits);
    let number = if number.is_empty() { 0 } else { number.parse().unwrap_or(usize::MAX) };
    (number, rest)
}

fn divisible_by(value: i64, by: i64) -> Result<bool, Error> {
    if by == 0 {
        return Err(invalid("nothing is divisible by 0"));
    }
    Ok(value.checked_rem(by).unwrap_or(0) == 0)
}

/// Two integers as such, else two numbers.
enum Numbers {
    Integers(i128, i128),
    Floats(f64, f64),
}

fn numbers(one: &Value, other: &Value) -> Option<Numbers> {
    if !one.is_number() || !other.is_number() {
        return None;
    }
    if one.is_integer() && other.is_integer() {
        return Some(Numbers::Integers(
            i128::try_from(one.clone()).ok()?,
            i128::try_from(other.clone()).ok()?,
        ));
    }
    Some(Numbers::Floats(f64::try_from(one.clone()).ok()?, f64::try_from(other.clone()).ok()?))
}

fn integer(result: Option<i128>) -> Result<Value, Error> {
    let result = result.ok_or_else(|| invalid("the number becomes too large"))?;
    Ok(i64::try_from(result).map_or_else(|_| Value::from(result), Value::from))
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

fn add(one: &Value, other: &Value) -> Result<Value, Error> {
    match numbers(one, other) {
        Some(Numbers::Integers(one, other)) => return integer(one.checked_add(other)),
        Some(Numbers::Floats(one, other)) => return Ok(Value::from(one + other)),
        None => {}
    }
    if one.kind() == ValueKind::String && other.kind() == ValueKind::String {
        return concat(one, other);
    }
    if is_list(one) && is_list(other) {
        let entries = one.len().unwrap_or(usize::MAX).saturating_add(other.len().unwrap_or(usize::MAX));
        at_most_entries(entries)?;
        return Ok(Value::from(one.try_iter()?.chain(other.try_iter()?).collect::<Vec<Value>>()));
    }
    Err(invalid(format!("tried to use + operator on unsupported types {} and {}", one.kind(), other.kind())))
}

fn multiply(one: &Value, other: &Value) -> Result<Value, Error> {
    match numbers(one, other) {
        Some(Numbers::Integers(one, other)) => return integer(one.checked_mul(other)),
        Some(Numbers::Floats(one, other)) => return Ok(Value::from(one * other)),
        None => {}
    }
    let (text, times) = if one.kind() == ValueKind::String { (one, other) } else { (other, one) };
    match (text.as_str(), times.as_usize()) {
        (Some(text), Some(times)) if times_fit(times) => {
            at_most_bytes(text.len().saturating_mul(times))?;
            Ok(Value::from(text.repeat(times)))
        }
        (Some(_), Some(_)) => Err(exceeded(format!("a text is repeated more than {VALUE_MAX} times"))),
        _ => Err(invalid(format!(
            "tried to use * operator on unsupported types {} and {}",
            one.kind(),
            other.kind()
        ))),
    }
}

fn times_fit(times: usize) -> bool {
    times <= VALUE_MAX
}

fn concat(one: &Value, other: &Value) -> Result<Value, Error> {
    let (one, other) = (one.to_string(), other.to_string());
    at_most_bytes(one.len().saturating_add(other.len()))?;
    Ok(Value::from(one + &other))
}

fn is_in(value: &Value, container: &Value) -> Result<Value, Error> {
    Ok(Value::from(match container.kind() {
        ValueKind::Undefined => false,
        ValueKind::String => container.to_string().contains(&value.to_string()),
        ValueKind::Seq | ValueKind::Iterable => container.try_iter()?.any(|entry| entry == *value),
        ValueKind::Map => container.try_iter()?.any(|name| name == *value),
        kind => return Err(invalid(format!("cannot look for something in a {kind}"))),
    }))
}

/// `value[key]`.
fn item(state: &mut State<'_, '_>, value: &Value, key: &Value) -> Result<Value, Error> {
    if value.is_undefined() {
        return match state.undefined_behavior() {
            UndefinedBehavior::Chainable => Ok(Value::UNDEFINED),
            _ => Err(Error::from(ErrorKind::UndefinedError)),
        };
    }
    if matches!(value.kind(), ValueKind::String | ValueKind::Iterable) {
        charge(state, value, 1)?;
    }
    value.get_item(key)
}

/// `value[from:to]` of a text or a list. Negative positions count from the end.
fn part(state: &mut State<'_, '_>, value: &Value, from: &Value, to: &Value) -> Result<Value, Error> {
    charge(state, value, 1)?;
    let entries = value.len().unwrap_or(0);
    let position = |raw: &Value, otherwise: usize| -> Result<usize, Error> {
        if raw.is_none() {
            return Ok(otherwise);
        }
        let raw = i64::try_from(raw.clone())?;
        let from_start = usize::try_from(raw.unsigned_abs()).unwrap_or(usize::MAX);
        Ok(if raw < 0 { entries.saturating_sub(from_start) } else { from_start.min(entries) })
    };
    let (from, to) = (position(from, 0)?, position(to, entries)?);
    let wanted = to.saturating_sub(from);
    let result = match value.kind() {
        ValueKind::Undefined if state.undefined_behavior() == UndefinedBehavior::Strict => {
            return Err(Error::from(ErrorKind::UndefinedError));
        }
        ValueKind::Undefined | ValueKind::None => Value::from(Vec::<Value>::new()),
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            Value::from(text.chars().skip(from).take(wanted).collect::<String>())
        }
        ValueKind::Seq | ValueKind::Iterable => {
            Value::from(value.try_iter()?.skip(from).take(wanted).collect::<Vec<Value>>())
        }
        kind => return Err(invalid(format!("value of type {kind} cannot be sliced"))),
    };
    charge(state, &result, 1)?;
    Ok(result)
}

/// `range(to)`, `range(from, to)` and `range(from, to, step)`.
fn range(state: &mut State<'_, '_>, first: i64, to: Option<i64>, step: Option<i64>) -> Result<Value, Error> {
    let (from, to) = to.map_or((0, first), |to| (first, to));
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(invalid("the step of a range cannot be 0"));
    }
    let mut numbers = Vec::new();
    let mut next = Some(from);
    while let Some(number) = next.filter(|number| if step > 0 { *number < to } else { *number > to }) {
        at_most_entries(numbers.len() + 1)?;
        numbers.push(Value::from(number));
        next = number.checked_add(step);
    }
    let result = Value::from(numbers);
    charge(state, &result, 1)?;
    Ok(result)
}
