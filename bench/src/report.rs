//! The table of results, and the check that every bar was reached.

/// The results.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) machine: Vec<String>,
    rows: Vec<[String; 6]>,
    notes: Vec<String>,
    below: Vec<String>,
}

const HEAD: [&str; 6] = ["quantity", "raw/s", "ours/s", "ratio", "bar", "result"];

impl Report {
    /// Adds a quantity of both sides, measured alternately. The ratio is the median of the rounds' ratios, because a temporary
    /// load of the machine affects both sides of a round.
    pub(crate) fn compare(&mut self, quantity: &str, rounds: &[(f64, f64)], bar: Option<f64>) {
        let raw = median(rounds.iter().map(|round| round.0));
        let ours = median(rounds.iter().map(|round| round.1));
        let ratio = median(rounds.iter().map(|round| round.1 / round.0));
        let result = self.judge(quantity, bar.map(|bar| ratio >= bar));
        let bar = bar.map(|bar| format!("{:.0} %", bar * 100.0)).unwrap_or_default();
        self.row([quantity, &count(raw), &count(ours), &format!("{:.0} %", ratio * 100.0), &bar, result]);
    }

    /// Adds a quantity without a raw side.
    pub(crate) fn single(&mut self, quantity: &str, found: &str, bar: Option<(&str, bool)>) {
        let result = self.judge(quantity, bar.map(|(_, reached)| reached));
        self.row([quantity, "", found, "", bar.map_or("", |(bar, _)| bar), result]);
    }

    /// Adds a sentence below the table.
    pub(crate) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    fn judge(&mut self, quantity: &str, reached: Option<bool>) -> &'static str {
        match reached {
            None => "",
            Some(true) => "ok",
            Some(false) => {
                self.below.push(quantity.to_owned());
                "below bar"
            }
        }
    }

    fn row(&mut self, cells: [&str; 6]) {
        eprintln!(
            "{}: {}",
            cells[0],
            cells[1..].iter().filter(|cell| !cell.is_empty()).copied().collect::<Vec<_>>().join(" | ")
        );
        self.rows.push(cells.map(str::to_owned));
    }

    pub(crate) fn print(&self) {
        for fact in &self.machine {
            println!("{fact}");
        }
        println!();
        let widths: [usize; 6] = std::array::from_fn(|column| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.chain([HEAD[column].len()]).max().unwrap_or_default()
        });
        let line = |cells: [&str; 6]| {
            let padded: [String; 6] = std::array::from_fn(|column| {
                let (cell, width) = (cells[column], widths[column]);
                if (1..5).contains(&column) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
            });
            println!("{}", padded.join(" | ").trim_end());
        };
        line(HEAD);
        println!("{}", widths.map(|width| "-".repeat(width)).join("-|-"));
        for row in &self.rows {
            line(std::array::from_fn(|column| row[column].as_str()));
        }
        println!();
        for note in &self.notes {
            println!("{note}");
        }
    }

    /// Fails with the names of all quantities below their bar.
    pub(crate) fn result(&self) -> anyhow::Result<()> {
        anyhow::ensure!(self.below.is_empty(), "below the bar: {}", self.below.join("; "));
        Ok(())
    }
}

/// The median.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A number with separators, such as 123,456.
pub(crate) fn count(value: f64) -> String {
    let digits = format!("{value:.0}");
    let grouped = digits.as_bytes().rchunks(3).rev().map(|group| String::from_utf8_lossy(group).into_owned());
    grouped.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_bar_is_an_error_and_a_reached_one_is_not() {
        let mut report = Report::default();
        report.compare("fast", &[(100.0, 70.0), (10.0, 9.0), (100.0, 80.0)], Some(0.75));
        assert!(report.result().is_ok());
        report.compare("slow", &[(100.0, 70.0)], Some(0.75));
        report.single("small", "5 MB", Some(("< 6 MB", true)));
        assert_eq!(report.result().map_err(|error| error.to_string()), Err("below the bar: slow".to_owned()));
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!([7.0, 1_234.4, 1_234_567.0].map(count), ["7", "1,234", "1,234,567"]);
    }
}
