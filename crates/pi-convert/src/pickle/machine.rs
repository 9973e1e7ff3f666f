//! The stack machine: instructions that make plain values. What calls something is in [`calls`](super::calls).

use super::{Id, Refusal, Value};
use std::collections::HashMap;

/// Runs a pickle: all values that it made, and which of them it stands for.
pub(super) fn run(bytes: &[u8]) -> Result<(Vec<Value>, Id), Refusal> {
    let mut machine = Machine {
        bytes,
        at: 0,
        start: 0,
        values: Vec::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
    };
    match machine.run() {
        Ok(root) => Ok((machine.values, root)),
        Err(what) => Err(Refusal { at: machine.start, what }),
    }
}

pub(super) struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Where the current instruction starts.
    start: usize,
    values: Vec<Value>,
    stack: Vec<Id>,
    /// Heights of the stack at its marks.
    marks: Vec<usize>,
    memo: HashMap<u64, Id>,
}

pub(super) type Step<T = ()> = Result<T, String>;

impl Machine<'_> {
    fn run(&mut self) -> Step<Id> {
        loop {
            self.start = self.at;
            let [code] = self.fixed()?;
            match code {
                b'.' => return self.pop(),
                b'\x80' => {
                    let [version] = self.fixed()?;
                    if version > 5 {
                        return Err(format!("protocol {version} is not known"));
                    }
                }
                b'\x95' => drop(self.fixed::<8>()?), // a frame's length: of no use to who has all bytes
                b'(' => self.marks.push(self.stack.len()),
                b'0' => drop(self.pop()?),
                b'1' => drop(self.marked()?),
                b'N' => self.push(Value::None)?,
                b'\x88' => self.push(Value::Bool(true))?,
                b'\x89' => self.push(Value::Bool(false))?,
                b'J' => {
                    let x = i32::from_le_bytes(self.fixed()?);
                    self.push(Value::Int(x.into()))?;
                }
                b'K' => {
                    let [x] = self.fixed()?;
                    self.push(Value::Int(x.into()))?;
                }
                b'M' => {
                    let x = u16::from_le_bytes(self.fixed()?);
                    self.push(Value::Int(x.into()))?;
                }
                b'\x8a' => self.long()?,
                b'G' => {
                    let x = f64::from_be_bytes(self.fixed()?);
                    self.push(Value::Float(x))?;
                }
                b'X' => {
                    let len = u32::from_le_bytes(self.fixed()?);
                    self.string(len.into())?;
                }
                b'\x8c' => {
                    let [len] = self.fixed()?;
                    self.string(len.into())?;
                }
                b'\x8d' => {
                    let len = u64::from_le_bytes(self.fixed()?);
                    self.string(len)?;
                }
                b'B' => {
                    let len = u32::from_le_bytes(self.fixed()?);
                    self.raw(len)?;
                }
                b'C' => {
                    let [len] = self.fixed()?;
                    self.raw(len.into())?;
                }
                b')' => self.push(Value::Tuple(Vec::new()))?,
                b't' => {
                    let items = self.marked()?;
                    self.push(Value::Tuple(items))?;
                }
                b'\x85'..=b'\x87' => {
                    let count = usize::from(code - b'\x84');
                    let from = self.above_mark(count)?;
                    let items = self.stack.split_off(from);
                    self.push(Value::Tuple(items))?;
                }
                b']' => self.push(Value::List(Vec::new()))?,
                b'l' => {
                    let items = self.marked()?;
                    self.push(Value::List(items))?;
                }
                b'a' => {
                    let item = self.pop()?;
                    self.append(vec![item])?;
                }
                b'e' => {
                    let items = self.marked()?;
                    self.append(items)?;
                }
                b'}' => self.push(Value::Dict(Vec::new()))?,
                b'd' => {
                    let entries = pairs(self.marked()?)?;
                    self.push(Value::Dict(entries))?;
                }
                b's' => {
                    let value = self.pop()?;
                    let key = self.pop()?;
                    self.set(vec![(key, value)])?;
                }
                b'u' => {
                    let entries = pairs(self.marked()?)?;
                    self.set(entries)?;
                }
                b'q' => {
                    let [key] = self.fixed()?;
                    self.remember(key.into())?;
                }
                b'r' => {
                    let key = u32::from_le_bytes(self.fixed()?);
                    self.remember(key.into())?;
                }
                b'\x94' => self.remember(self.memo.len() as u64)?,
                b'h' => {
                    let [key] = self.fixed()?;
                    self.recall(key.into())?;
                }
                b'j' => {
                    let key = u32::from_le_bytes(self.fixed()?);
                    self.recall(key.into())?;
                }
                b'c' => {
                    let (module, name) = (self.line()?, self.line()?);
                    self.global(&module, &name)?;
                }
                b'\x93' => {
                    let (name, module) = (self.pop_string()?, self.pop_string()?);
                    self.global(&module, &name)?;
                }
                b'R' => self.call()?,
                b'b' => self.build()?,
                b'Q' => self.persistent()?,
                _ => return Err(refused(code)),
            }
        }
    }

    fn take(&mut self, len: usize) -> Step<&[u8]> {
        let rest = &self.bytes[self.at..];
        let Some(found) = rest.get(..len) else {
            return Err(format!("it ends {} bytes too early", len - rest.len()));
        };
        self.at += len;
        Ok(found)
    }

    fn fixed<const N: usize>(&mut self) -> Step<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn sized(&mut self, len: u64) -> Step<&[u8]> {
        let len = usize::try_from(len).map_err(|_| "a length that cannot be addressed".to_owned())?;
        self.take(len)
    }

    pub(super) fn push(&mut self, value: Value) -> Step {
        let id = u32::try_from(self.values.len()).map_err(|_| "too many values".to_owned())?;
        self.values.push(value);
        self.stack.push(Id(id));
        Ok(())
    }

    /// Where the topmost `count` values start. They must lie above the last mark.
    fn above_mark(&self, count: usize) -> Step<usize> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let from = self.stack.len().checked_sub(count).filter(|&from| from >= floor);
        from.ok_or_else(|| "it takes a value that is not there".to_owned())
    }

    pub(super) fn pop(&mut self) -> Step<Id> {
        self.above_mark(1)?;
        self.stack.pop().ok_or_else(|| "it takes a value that is not there".to_owned())
    }

    fn marked(&mut self) -> Step<Vec<Id>> {
        let mark = self.marks.pop().ok_or("it takes values down to a mark that is not there")?;
        Ok(self.stack.split_off(mark))
    }

    pub(super) fn get(&self, id: Id) -> Step<&Value> {
        self.values.get(id.0 as usize).ok_or_else(|| "no such value".to_owned())
    }

    /// The topmost value, to be changed.
    pub(super) fn top(&mut self) -> Step<&mut Value> {
        let from = self.above_mark(1)?;
        let id = self.stack[from];
        self.values.get_mut(id.0 as usize).ok_or_else(|| "no such value".to_owned())
    }

    fn append(&mut self, items: Vec<Id>) -> Step {
        match self.top()? {
            Value::List(list) => list.extend(items),
            other => return Err(format!("it appends to {}", other.kind())),
        }
        Ok(())
    }

    fn set(&mut self, entries: Vec<(Id, Id)>) -> Step {
        match self.top()? {
            Value::Dict(dict) => dict.extend(entries),
            other => return Err(format!("it sets keys of {}", other.kind())),
        }
        Ok(())
    }

    fn remember(&mut self, key: u64) -> Step {
        let from = self.above_mark(1)?;
        self.memo.insert(key, self.stack[from]);
        Ok(())
    }

    fn recall(&mut self, key: u64) -> Step {
        let id = *self.memo.get(&key).ok_or_else(|| format!("it recalls value {key}, which it did not remember"))?;
        self.stack.push(id);
        Ok(())
    }

    fn long(&mut self) -> Step {
        let [len] = self.fixed()?;
        let bytes = self.take(len.into())?;
        if bytes.len() > 8 {
            return Err(format!("an integer of {len} bytes"));
        }
        let negative = bytes.last().is_some_and(|b| b & 0x80 != 0);
        let mut wide = if negative { [0xff; 8] } else { [0; 8] };
        wide[..bytes.len()].copy_from_slice(bytes);
        self.push(Value::Int(i64::from_le_bytes(wide)))
    }

    fn string(&mut self, len: u64) -> Step {
        let text = std::str::from_utf8(self.sized(len)?).map_err(|_| "a string that is not UTF-8".to_owned())?;
        let text = text.to_owned();
        self.push(Value::Str(text))
    }

    fn raw(&mut self, len: u32) -> Step {
        let bytes = self.sized(len.into())?.to_vec();
        self.push(Value::Bytes(bytes))
    }

    fn line(&mut self) -> Step<String> {
        let rest = &self.bytes[self.at..];
        let len = rest.iter().take(256).position(|&b| b == b'\n').ok_or("a name without an end")?;
        let name = String::from_utf8_lossy(&rest[..len]).into_owned();
        self.at += len + 1;
        Ok(name)
    }

    fn pop_string(&mut self) -> Step<String> {
        let id = self.pop()?;
        match self.get(id)? {
            Value::Str(text) => Ok(text.clone()),
            other => Err(format!("a name that is {}", other.kind())),
        }
    }
}

fn pairs(items: Vec<Id>) -> Step<Vec<(Id, Id)>> {
    let (pairs, rest) = items.as_chunks();
    if rest.is_empty() {
        Ok(pairs.iter().map(|&[key, value]| (key, value)).collect())
    } else {
        Err("a key without a value".to_owned())
    }
}

fn refused(code: u8) -> String {
    let name = match code {
        b'i' => "INST",
        b'o' => "OBJ",
        b'\x81' => "NEWOBJ",
        b'\x92' => "NEWOBJ_EX",
        b'\x82'..=b'\x84' => "EXT",
        b'P' => "PERSID",
        _ => return format!("instruction 0x{code:02x} is not one that tensors need"),
    };
    format!("instruction {name} makes objects, which is not allowed")
}
