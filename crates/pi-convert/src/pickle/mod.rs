//! Reads pickles without executing anything.
//!
//! A pickle is a program for a stack machine that can name and call any function of the reader's Python. This reader builds
//! values of a few kinds and knows two functions, both of which it only writes down: the one that makes a dict with an order,
//! and the one that describes a tensor. Any other name is refused, as are all other ways to call something. What a pickle can
//! cost is bounded by its length: every instruction makes at most one value, and values are shared, never copied.

mod calls;
mod machine;
mod value;
mod walk;

pub use value::{Global, Id, Number, Storage, Tensor, Value};
pub use walk::MAX_DEPTH;

/// Where and why a pickle was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The byte of the instruction.
    pub at: usize,
    /// What is wrong with it.
    pub what: String,
}

/// A pickle that was read.
#[derive(Debug)]
pub struct Pickle {
    values: Vec<Value>,
    root: Id,
}

impl Pickle {
    /// Reads a pickle.
    ///
    /// # Errors
    /// [`Refusal`] if it is damaged or needs anything that is not known here.
    pub fn parse(bytes: &[u8]) -> Result<Self, Refusal> {
        let (values, root) = machine::run(bytes)?;
        Ok(Self { values, root })
    }

    /// The value that the pickle stands for.
    pub fn root(&self) -> &Value {
        self.get(self.root)
    }

    /// A value by its number.
    pub fn get(&self, id: Id) -> &Value {
        // Numbers are made by the machine only, and it never removes a value.
        self.values.get(id.0 as usize).unwrap_or(&Value::None)
    }

    /// All tensors with their names: those of nested dicts and lists are joined by dots; a lone tensor has the name "".
    ///
    /// # Errors
    /// A message if values are nested too deeply (or in themselves), or are referred to more often than there are values.
    pub fn tensors(&self) -> Result<Vec<(String, &Tensor)>, String> {
        walk::tensors(self)
    }
}
