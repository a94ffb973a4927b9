//! Tables that fit a terminal without breaking ids and other text that people copy.

use comfy_table::{ColumnConstraint, ContentArrangement, Table, Width, presets};

/// Words longer than this are broken, unless they are ids, keys, names or addresses.
const WORD_KEPT: usize = 24;

/// A table of this width. Sentences are wrapped; ids, keys, names and times are not. If the columns do not fit beside each other, every
/// row becomes a record with a line per column. Without a width nothing is wrapped.
pub(super) fn arrange<const N: usize>(
    header: &[String; N],
    rows: &[[String; N]],
    width: Option<usize>,
) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.clone());
    for row in rows {
        table.add_row(row.clone());
    }
    if let Some(width) = width {
        let natural: Vec<usize> = table.column_max_content_widths().into_iter().map(usize::from).collect();
        let least: Vec<usize> = natural
            .iter()
            .enumerate()
            .map(|(column, natural)| {
                let cells = rows.iter().chain([header]).filter_map(|row| row.get(column));
                let longest_word = cells.map(|cell| least_width(cell)).max().unwrap_or_default();
                longest_word.max(SENTENCE_WIDTH_MIN.min(*natural))
            })
            .collect();
        match fit(&natural, &least, width) {
            Fit::Natural => {}
            Fit::Widths(widths) => {
                table.set_content_arrangement(ContentArrangement::Dynamic);
                let constraints = widths.into_iter().map(|width| {
                    let width = u16::try_from(width + PADDING).unwrap_or(u16::MAX);
                    ColumnConstraint::Absolute(Width::Fixed(width))
                });
                table.set_constraints(constraints);
                table.set_width(u16::try_from(width).unwrap_or(u16::MAX));
            }
            Fit::Records => return records(header, rows),
        }
    }
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Minimum width of a column with sentences.
const SENTENCE_WIDTH_MIN: usize = 16;

/// Blanks of a column: one on either side.
const PADDING: usize = 2;

#[derive(Debug, PartialEq, Eq)]
enum Fit {
    Natural,
    Widths(Vec<usize>),
    Records,
}

/// Widths of the columns, without their padding.
fn fit(natural: &[usize], least: &[usize], width: usize) -> Fit {
    let padding = natural.len() * PADDING;
    if natural.iter().sum::<usize>() + padding <= width {
        return Fit::Natural;
    }
    let Some(mut spare) = width.checked_sub(least.iter().sum::<usize>() + padding) else {
        return Fit::Records;
    };
    let mut widths = least.to_vec();
    while spare > 0 {
        let before = spare;
        for (width, natural) in widths.iter_mut().zip(natural) {
            if *width < *natural && spare > 0 {
                *width += 1;
                spare -= 1;
            }
        }
        if spare == before {
            break;
        }
    }
    Fit::Widths(widths)
}

/// The width below which an id, a name or a time in this cell would be broken.
fn least_width(cell: &str) -> usize {
    if is_time(cell) {
        return cell.len();
    }
    let words = cell.split(' ').map(|word| {
        let length = word.chars().count();
        if is_whole(word) { length } else { length.min(WORD_KEPT) }
    });
    words.max().unwrap_or_default()
}

/// Ids, keys, names and addresses.
fn is_whole(word: &str) -> bool {
    word.chars().all(|c| c.is_ascii_alphanumeric() || "_-.:@/+".contains(c))
}

/// As [`super::time`] writes it.
fn is_time(cell: &str) -> bool {
    cell.len() == "2026-01-01 00:00:00Z".len()
        && cell.ends_with('Z')
        && cell.bytes().all(|byte| byte.is_ascii_digit() || b"-: Z".contains(&byte))
}

/// One line per column, and an empty line between two rows.
fn records<const N: usize>(header: &[String; N], rows: &[[String; N]]) -> String {
    let widest = header.iter().map(|name| name.chars().count()).max().unwrap_or_default();
    let rows = rows.iter().map(|row| {
        let lines = header.iter().zip(row).map(|(name, cell)| format!("{name:<widest$}  {cell}\n"));
        lines.collect::<String>()
    });
    rows.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "run_0190f3a2-7c1e-7f00-8000-0123456789ab";
    const TIME: &str = "2026-11-17 04:00:00Z";

    fn example() -> ([String; 4], Vec<[String; 4]>) {
        let header = ["PHASE", "RUN", "SINCE", "REASON"].map(str::to_owned);
        let reason = "no answer within 30 s; its worker sent no heartbeat, and the provider was not queried";
        let row = ["mail".to_owned(), ID.to_owned(), TIME.to_owned(), reason.to_owned()];
        (header, vec![row.clone(), row])
    }

    #[test]
    fn no_width_breaks_an_id_or_a_time() {
        let (header, rows) = example();
        for width in 1..200 {
            let shown = arrange(&header, &rows, Some(width));
            assert_eq!(shown.matches(ID).count(), 2, "{width}:\n{shown}");
            assert_eq!(shown.matches(TIME).count(), 2, "{width}:\n{shown}");
        }
    }

    #[test]
    fn sentences_are_wrapped_into_the_width_while_it_is_wide_enough() {
        let (header, rows) = example();
        let shown = arrange(&header, &rows, Some(100));
        assert!(shown.lines().count() > 3 && shown.starts_with(" PHASE"), "{shown}");
        assert!(shown.lines().all(|line| line.chars().count() <= 100), "{shown}");
        let narrow = arrange(&header, &rows, Some(80));
        assert!(
            narrow.starts_with(&format!("PHASE   mail\nRUN     {ID}\nSINCE   {TIME}\nREASON  no answer")),
            "{narrow}"
        );
    }

    #[test]
    fn nothing_is_wrapped_without_a_width() {
        let (header, rows) = example();
        assert_eq!(arrange(&header, &rows, None).lines().count(), 3);
        assert_eq!(arrange(&header, &rows, Some(500)), arrange(&header, &rows, None));
    }
}
