//! Kinds of files, by the names that llama.cpp gives them.

use std::fmt;
use std::str::FromStr;

use pi_core::QuantType;

use crate::error::Error;

/// A kind of file: the type that most of its matrices have, and a rule for the others.
#[allow(non_camel_case_types, missing_docs)] // the names are the field's own
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K_S,
    Q3_K_M,
    Q3_K_L,
    Q4_K_S,
    Q4_K_M,
    Q5_K_S,
    Q5_K_M,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
}

/// Name, number in `general.file_type`, most tensors' type.
const TABLE: [(FileType, &str, u32, QuantType); 19] = [
    (FileType::F32, "F32", 0, QuantType::F32),
    (FileType::F16, "F16", 1, QuantType::F16),
    (FileType::BF16, "BF16", 32, QuantType::BF16),
    (FileType::Q4_0, "Q4_0", 2, QuantType::Q4_0),
    (FileType::Q4_1, "Q4_1", 3, QuantType::Q4_1),
    (FileType::Q5_0, "Q5_0", 8, QuantType::Q5_0),
    (FileType::Q5_1, "Q5_1", 9, QuantType::Q5_1),
    (FileType::Q8_0, "Q8_0", 7, QuantType::Q8_0),
    (FileType::Q2_K, "Q2_K", 10, QuantType::Q2_K),
    (FileType::Q3_K_S, "Q3_K_S", 11, QuantType::Q3_K),
    (FileType::Q3_K_M, "Q3_K_M", 12, QuantType::Q3_K),
    (FileType::Q3_K_L, "Q3_K_L", 13, QuantType::Q3_K),
    (FileType::Q4_K_S, "Q4_K_S", 14, QuantType::Q4_K),
    (FileType::Q4_K_M, "Q4_K_M", 15, QuantType::Q4_K),
    (FileType::Q5_K_S, "Q5_K_S", 16, QuantType::Q5_K),
    (FileType::Q5_K_M, "Q5_K_M", 17, QuantType::Q5_K),
    (FileType::Q6_K, "Q6_K", 18, QuantType::Q6_K),
    (FileType::IQ4_NL, "IQ4_NL", 25, QuantType::IQ4_NL),
    (FileType::IQ4_XS, "IQ4_XS", 30, QuantType::IQ4_XS),
];

/// Shorter names for the middle sizes.
const ALIASES: [(&str, FileType); 3] =
    [("Q3_K", FileType::Q3_K_M), ("Q4_K", FileType::Q4_K_M), ("Q5_K", FileType::Q5_K_M)];

impl FileType {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.0)
    }

    /// The name, as in `Q4_K_M`.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// The number in `general.file_type`.
    pub fn id(self) -> u32 {
        self.row().2
    }

    /// The type that most matrices have.
    pub fn most(self) -> QuantType {
        self.row().3
    }

    fn row(self) -> &'static (Self, &'static str, u32, QuantType) {
        // Every variant has a row (there is a test), so the first is never taken for another.
        TABLE.iter().find(|row| row.0 == self).unwrap_or(&TABLE[0])
    }
}

impl fmt::Display for FileType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for FileType {
    type Err = Error;

    /// Reads a name, whatever its case; `Q3_K`, `Q4_K` and `Q5_K` mean the middle ones (`…_M`).
    fn from_str(text: &str) -> Result<Self, Error> {
        let row = TABLE.iter().find(|row| row.1.eq_ignore_ascii_case(text)).map(|row| row.0);
        let alias = || ALIASES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|alias| alias.1);
        row.or_else(alias).ok_or_else(|| {
            let known: Vec<_> = TABLE.iter().map(|row| row.1).collect();
            Error::Choice(format!("'{text}' is no kind of file (known: {})", known.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_own_row_name_and_number() {
        let mut ids: Vec<_> = FileType::all().map(FileType::id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), TABLE.len());
        for (ty, name, id, most) in TABLE {
            assert_eq!((ty.name(), ty.id(), ty.most(), name.to_lowercase().parse().ok()), (name, id, most, Some(ty)));
        }
        assert_eq!("q4_k".parse::<FileType>().ok(), Some(FileType::Q4_K_M));
        assert!("Q4".parse::<FileType>().unwrap_err().to_string().contains("known: F32, F16, BF16, Q4_0"));
    }
}
