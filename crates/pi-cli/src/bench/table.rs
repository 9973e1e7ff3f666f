//! Results, one after the other, in one of four forms.

use crate::{
    failure::{Failure, Result},
    output::Output,
};
use clap::ValueEnum;
use serde::ser::{SerializeMap, Serializer};
use serde_json::Value;

/// A form of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table in Markdown
    Md,
    /// Comma-separated values
    Csv,
    /// A JSON array of objects
    Json,
    /// A JSON object per line
    Jsonl,
}

/// A column of the Markdown table: its title and how wide it is at least. Text is aligned to the left, numbers to the right.
pub type Column = (&'static str, usize, Align);

/// Which side of a column its cells stand at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// One result.
pub trait Row {
    /// Everything there is to know, for programs. The names are the same for all rows of a table.
    fn fields(&self) -> Vec<(&'static str, Value)>;
    /// What people want to see: one text per column of the table.
    fn cells(&self) -> Vec<String>;
}

/// Writes rows as they come.
pub struct Table {
    format: Format,
    columns: Vec<Column>,
    out: Output,
    rows: usize,
}

impl Table {
    /// A table with these columns in Markdown; the other forms have all fields.
    pub fn new(format: Format, columns: Vec<Column>) -> Self {
        Self { format, columns, out: Output::new(), rows: 0 }
    }

    /// Writes a row.
    ///
    /// # Errors
    /// If nobody reads it, or the system refuses it.
    pub fn row(&mut self, row: &impl Row) -> Result<()> {
        let first = self.rows == 0;
        self.rows += 1;
        let text = match self.format {
            Format::Md => {
                let head = if first { self.head() } else { String::new() };
                head + &self.line(&row.cells())
            }
            Format::Csv => {
                // Lists have no place in a table.
                let fields: Vec<_> = row.fields().into_iter().filter(|(_, v)| !v.is_array()).collect();
                let head = fields.iter().map(|(name, _)| (*name).to_string()).collect::<Vec<_>>().join(",");
                let values = fields.iter().map(|(_, v)| quoted(v)).collect::<Vec<_>>().join(",");
                if first { format!("{head}\n{values}\n") } else { format!("{values}\n") }
            }
            Format::Json => format!("{}{}", if first { "[\n" } else { ",\n" }, object(row)?),
            Format::Jsonl => object(row)? + "\n",
        };
        self.out.write(text.as_bytes())
    }

    /// Ends the table.
    ///
    /// # Errors
    /// As [`row`](Self::row).
    pub fn end(mut self) -> Result<()> {
        match (self.format, self.rows) {
            (Format::Json, 0) => self.out.write(b"[]\n"),
            (Format::Json, _) => self.out.write(b"\n]\n"),
            _ => Ok(()),
        }
    }

    fn head(&self) -> String {
        let titles: Vec<_> = self.columns.iter().map(|(title, ..)| (*title).to_string()).collect();
        let rule = self.columns.iter().map(|&(title, width, align)| {
            let dashes = "-".repeat(width.max(title.len()) - usize::from(align == Align::Right));
            if align == Align::Right { format!("| {dashes}: ") } else { format!("| {dashes} ") }
        });
        format!("{}{}|\n", self.line(&titles), rule.collect::<String>())
    }

    fn line(&self, cells: &[String]) -> String {
        let cells = self.columns.iter().zip(cells).map(|(&(title, width, align), cell)| {
            let width = width.max(title.len());
            if align == Align::Right { format!("| {cell:>width$} ") } else { format!("| {cell:<width$} ") }
        });
        cells.collect::<String>() + "|\n"
    }
}

/// In quotes, so that nothing in it ends the cell. What is not known is empty.
fn quoted(value: &Value) -> String {
    let text = match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// The fields as an object, in their order.
fn object(row: &impl Row) -> Result<String> {
    let (fields, mut bytes) = (row.fields(), Vec::new());
    let write = |bytes: &mut Vec<u8>| {
        let mut serializer = serde_json::Serializer::new(bytes);
        let mut map = serializer.serialize_map(Some(fields.len()))?;
        fields.iter().try_for_each(|(name, value)| map.serialize_entry(name, value))?;
        map.end()
    };
    write(&mut bytes).map_err(|e: serde_json::Error| Failure::Work(format!("JSON: {e}")))?;
    String::from_utf8(bytes).map_err(|e| Failure::Work(format!("JSON: {e}")))
}

/// Figures of several runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Standard deviation of a single run; 0 if there is but one.
    pub deviation: f64,
}

/// Mean and standard deviation.
pub fn spread(samples: &[f64]) -> Spread {
    let n = samples.len() as f64;
    let mean = samples.iter().sum::<f64>() / n.max(1.0);
    let squares: f64 = samples.iter().map(|s| (s - mean).powi(2)).sum();
    Spread { mean, deviation: if samples.len() > 1 { (squares / (n - 1.0)).sqrt() } else { 0.0 } }
}

/// The one in the middle (of an even number, the mean of the two); NaN of none.
pub fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    match n {
        0 => f64::NAN,
        _ => (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_those_of_the_textbook() {
        assert_eq!(spread(&[2.0, 4.0, 6.0]), Spread { mean: 4.0, deviation: 2.0 });
        assert_eq!(spread(&[3.0]).deviation, 0.0);
        assert_eq!((median(&[5.0, 1.0, 3.0]), median(&[4.0, 1.0, 3.0, 2.0])), (3.0, 2.5));
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn a_cell_of_a_csv_file_may_hold_anything() {
        assert_eq!(quoted(&Value::from("a \"b\", c")), "\"a \"\"b\"\", c\"");
        assert_eq!((quoted(&Value::Null), quoted(&Value::from(1.5))), ("\"\"".into(), "\"1.5\"".into()));
    }
}
