//! From nested values to tensors with names.

use super::{Id, Pickle, Tensor, Value};

/// How deep values may be nested when they are walked.
pub const MAX_DEPTH: usize = 32;

/// All tensors of a pickle with their names.
pub(super) fn tensors(pickle: &Pickle) -> Result<Vec<(String, &Tensor)>, String> {
    let mut walk = Walk { pickle, found: Vec::new(), left: pickle.values.len().saturating_mul(2) + 16 };
    walk.value(pickle.root, String::new(), 0)?;
    Ok(walk.found)
}

/// Collects tensors. A few values can stand for very many, by referring to each other: visits are counted.
struct Walk<'a> {
    pickle: &'a Pickle,
    found: Vec<(String, &'a Tensor)>,
    left: usize,
}

impl<'a> Walk<'a> {
    fn value(&mut self, id: Id, name: String, depth: usize) -> Result<(), String> {
        if depth > MAX_DEPTH {
            return Err(format!("values are nested more than {MAX_DEPTH} deep"));
        }
        self.left = self.left.checked_sub(1).ok_or("values refer to each other too often")?;
        let join = |part: &str| if name.is_empty() { part.to_owned() } else { format!("{name}.{part}") };
        match self.pickle.get(id) {
            Value::Tensor(tensor) => self.found.push((name, tensor)),
            Value::List(items) | Value::Tuple(items) => {
                for (i, &item) in items.iter().enumerate() {
                    self.value(item, join(&i.to_string()), depth + 1)?;
                }
            }
            Value::Dict(entries) => {
                for &(key, value) in entries {
                    let key = match self.pickle.get(key) {
                        Value::Str(key) => join(key),
                        Value::Int(key) => join(&key.to_string()),
                        _ => continue, // no tensor is called by anything else
                    };
                    self.value(value, key, depth + 1)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}
