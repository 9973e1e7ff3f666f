//! What a pickle holds.

/// What a pickle holds. Values refer to each other by number ([`Pickle::get`](super::Pickle::get)).
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

impl Value {
    /// What it is, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Bool(_) => "a boolean",
            Self::Int(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Str(_) => "a string",
            Self::Bytes(_) => "bytes",
            Self::Tuple(_) => "a tuple",
            Self::List(_) => "a list",
            Self::Dict(_) => "a dict",
            Self::Global(_) => "a type or function",
            Self::Storage(_) => "a storage",
            Self::Tensor(_) => "a tensor",
        }
    }
}

/// The number of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id(pub(super) u32);

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

    pub(super) fn from_storage(name: &str) -> Option<Self> {
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
