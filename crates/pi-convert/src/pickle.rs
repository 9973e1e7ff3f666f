//! Reads pickles without executing anything.
//!
//! A pickle is a program for a stack machine that can name and call any function of the reader's Python. This reader builds
//! values of a few kinds and knows two functions, both of which it only writes down: the one that makes a dict with an order,
//! and the one that describes a tensor. Any other name is refused, as are all other ways to call something. What a pickle can
//! cost is bounded by its length: every instruction makes at most one value, and values are shared, never copied.

use std::collections::HashMap;

/// How deep values may be nested when they are walked.
pub const MAX_DEPTH: usize = 32;

/// What a pickle holds. Values refer to each other by number ([`Pickle::get`]).
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `None`.
    None,
    /// A boolean.
    Bool(bool),
    /// An integer that fits 64 bits.
    Int(i64),
    /// A float.
    Float(f64),
    /// A string.
    Str(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A tuple.
    Tuple(Vec<Id>),
    /// A list.
    List(Vec<Id>),
    /// A dict, ordered or not: keys and values.
    Dict(Vec<(Id, Id)>),
    /// A name that may be referred to.
    Global(Global),
    /// Numbers that lie outside the pickle.
    Storage(Storage),
    /// A view of such numbers.
    Tensor(Tensor),
}

/// The number of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id(u32);

/// The names that a pickle may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Global {
    /// `collections.OrderedDict`.
    OrderedDict,
    /// `torch._utils._rebuild_tensor_v2`.
    RebuildTensor,
    /// `torch.FloatStorage` and its relatives.
    StorageType(Number),
}

/// Number types of storages.
#[allow(missing_docs)] // the names are their meaning
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    F16,
    BF16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    Bool,
}

impl Number {
    /// Bytes per number.
    pub fn width(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::Bool => 1,
            Self::F16 | Self::BF16 | Self::I16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }

    fn from_storage(name: &str) -> Option<Self> {
        Some(match name {
            "HalfStorage" => Self::F16,
            "BFloat16Storage" => Self::BF16,
            "FloatStorage" => Self::F32,
            "DoubleStorage" => Self::F64,
            "CharStorage" => Self::I8,
            "ShortStorage" => Self::I16,
            "IntStorage" => Self::I32,
            "LongStorage" => Self::I64,
            "ByteStorage" => Self::U8,
            "BoolStorage" => Self::Bool,
            _ => return None,
        })
    }
}

/// Numbers outside the pickle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    /// The name of the record that has them.
    pub key: String,
    /// Their type.
    pub number: Number,
    /// How many there are.
    pub len: usize,
}

/// A view of a storage, checked to stay within it, and to have no more numbers than it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The numbers.
    pub storage: Storage,
    /// Index of the first.
    pub offset: usize,
    /// The shape, slowest varying first.
    pub shape: Vec<usize>,
    /// By how much an index advances, for each dimension.
    pub strides: Vec<usize>,
}

impl Tensor {
    /// How many numbers the view has.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// True if it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

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
            Ok(root) => Ok(Self { values: machine.values, root }),
            Err(what) => Err(Refusal { at: machine.start, what }),
        }
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
        let mut walk = Walk { pickle: self, found: Vec::new(), left: self.values.len().saturating_mul(2) + 16 };
        walk.value(self.root, String::new(), 0)?;
        Ok(walk.found)
    }
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

struct Machine<'a> {
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

type Step<T = ()> = Result<T, String>;

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

    fn push(&mut self, value: Value) -> Step {
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

    fn pop(&mut self) -> Step<Id> {
        self.above_mark(1)?;
        self.stack.pop().ok_or_else(|| "it takes a value that is not there".to_owned())
    }

    fn marked(&mut self) -> Step<Vec<Id>> {
        let mark = self.marks.pop().ok_or("it takes values down to a mark that is not there")?;
        Ok(self.stack.split_off(mark))
    }

    fn get(&self, id: Id) -> Step<&Value> {
        self.values.get(id.0 as usize).ok_or_else(|| "no such value".to_owned())
    }

    /// The topmost value, to be changed.
    fn top(&mut self) -> Step<&mut Value> {
        let from = self.above_mark(1)?;
        let id = self.stack[from];
        self.values.get_mut(id.0 as usize).ok_or_else(|| "no such value".to_owned())
    }

    fn append(&mut self, items: Vec<Id>) -> Step {
        match self.top()? {
            Value::List(list) => list.extend(items),
            other => return Err(format!("it appends to {}", kind(other))),
        }
        Ok(())
    }

    fn set(&mut self, entries: Vec<(Id, Id)>) -> Step {
        match self.top()? {
            Value::Dict(dict) => dict.extend(entries),
            other => return Err(format!("it sets keys of {}", kind(other))),
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
            other => Err(format!("a name that is {}", kind(other))),
        }
    }

    fn global(&mut self, module: &str, name: &str) -> Step {
        let global = match (module, name) {
            ("collections", "OrderedDict") => Some(Global::OrderedDict),
            ("torch._utils", "_rebuild_tensor_v2") => Some(Global::RebuildTensor),
            ("torch", name) => Number::from_storage(name).map(Global::StorageType),
            _ => None,
        };
        let shown = || format!("{module}.{name}").chars().take(200).collect::<String>();
        let global = global.ok_or_else(|| format!("it refers to '{}', which is not allowed", shown()))?;
        self.push(Value::Global(global))
    }

    /// Applies a function that is known, which is: makes the value that it would make.
    fn call(&mut self) -> Step {
        let arguments = self.pop()?;
        let function = self.pop()?;
        let Value::Tuple(arguments) = self.get(arguments)? else {
            return Err("a call without a tuple of arguments".to_owned());
        };
        let value = match self.get(function)? {
            Value::Global(Global::OrderedDict) if arguments.is_empty() => Value::Dict(Vec::new()),
            Value::Global(Global::OrderedDict) => return Err("an ordered dict with arguments".to_owned()),
            Value::Global(Global::RebuildTensor) => Value::Tensor(self.tensor(arguments)?),
            other => return Err(format!("a call of {}, which is not allowed", kind(other))),
        };
        self.push(value)
    }

    /// State dicts carry attributes that say nothing about the tensors; anything else has none.
    fn build(&mut self) -> Step {
        let _state = self.pop()?;
        match self.top()? {
            Value::Dict(_) => Ok(()),
            other => Err(format!("it sets attributes of {}, which is not allowed", kind(other))),
        }
    }

    /// `('storage', torch.FloatStorage, key, device, count)`.
    fn persistent(&mut self) -> Step {
        let id = self.pop()?;
        let Value::Tuple(parts) = self.get(id)? else { return Err("a reference that is no tuple".to_owned()) };
        let [tag, ty, key, _device, len] = parts[..] else {
            return Err(format!("a reference of {} parts instead of 5", parts.len()));
        };
        if !matches!(self.get(tag)?, Value::Str(tag) if tag == "storage") {
            return Err("a reference to something other than a storage".to_owned());
        }
        let Value::Global(Global::StorageType(number)) = *self.get(ty)? else {
            return Err("a storage without a type".to_owned());
        };
        let Value::Str(key) = self.get(key)? else { return Err("a storage without a name".to_owned()) };
        // The name is copied into every tensor: a long one would make much of little.
        if key.len() > 64 {
            return Err(format!("a storage's name of {} bytes", key.len()));
        }
        let storage = Storage { key: key.clone(), number, len: self.size(len)? };
        if storage.len.checked_mul(number.width()).is_none_or(|n| isize::try_from(n).is_err()) {
            return Err(format!("a storage of {} numbers", storage.len));
        }
        self.push(Value::Storage(storage))
    }

    /// `(storage, offset, shape, strides, requires_grad, hooks)`, sometimes with metadata behind.
    fn tensor(&self, arguments: &[Id]) -> Step<Tensor> {
        let [storage, offset, shape, strides, ..] = arguments[..] else {
            return Err(format!("a tensor of {} parts instead of 6", arguments.len()));
        };
        let Value::Storage(storage) = self.get(storage)? else { return Err("a tensor without a storage".to_owned()) };
        let sizes = |id| match self.get(id)? {
            Value::Tuple(items) if items.len() <= 8 => items.iter().map(|&item| self.size(item)).collect(),
            Value::Tuple(items) => Err(format!("a tensor of {} dimensions", items.len())),
            other => Err(format!("a shape that is {}", kind(other))),
        };
        let (offset, shape, strides): (_, Vec<usize>, Vec<usize>) =
            (self.size(offset)?, sizes(shape)?, sizes(strides)?);
        if shape.len() != strides.len() {
            return Err(format!("a tensor of {} dimensions with {} strides", shape.len(), strides.len()));
        }
        let count = shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
        let Some(count) = count.filter(|&count| count <= storage.len) else {
            return Err(format!("a tensor of shape {shape:?} in a storage of {} numbers", storage.len));
        };
        let mut last = Some(offset);
        for (&dim, &stride) in shape.iter().zip(&strides) {
            let step = dim.saturating_sub(1).checked_mul(stride);
            last = last.zip(step).and_then(|(last, step)| last.checked_add(step));
        }
        if count > 0 && last.is_none_or(|last| last >= storage.len) {
            return Err(format!("a tensor that leaves its storage of {} numbers", storage.len));
        }
        Ok(Tensor { storage: storage.clone(), offset, shape, strides })
    }

    fn size(&self, id: Id) -> Step<usize> {
        match *self.get(id)? {
            Value::Int(x) => usize::try_from(x).map_err(|_| format!("a size of {x}")),
            ref other => Err(format!("a size that is {}", kind(other))),
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

fn kind(value: &Value) -> &'static str {
    match value {
        Value::None => "None",
        Value::Bool(_) => "a boolean",
        Value::Int(_) => "an integer",
        Value::Float(_) => "a float",
        Value::Str(_) => "a string",
        Value::Bytes(_) => "bytes",
        Value::Tuple(_) => "a tuple",
        Value::List(_) => "a list",
        Value::Dict(_) => "a dict",
        Value::Global(_) => "a type or function",
        Value::Storage(_) => "a storage",
        Value::Tensor(_) => "a tensor",
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
