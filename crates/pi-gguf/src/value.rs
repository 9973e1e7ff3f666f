//! Metadata values: their types, borrowed views of them, and lossless conversion to Rust types.

use std::borrow::Cow;
use std::fmt;
use std::str::Utf8Error;

/// The type of a metadata value, or of an array's elements.
#[allow(missing_docs)] // the names are their meaning
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    /// All types, each at the index that is its number in a file.
    pub const ALL: [Self; 13] = {
        use ValueType::*;
        [U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64]
    };

    /// The type with this number in a file.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(id).ok()?).copied()
    }

    /// The type's number in a file.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// The name, as in `u32`.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }

    /// Bytes of a value, or `None` for strings and arrays, which differ in length.
    pub fn width(self) -> Option<usize> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::String | Self::Array => None,
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A string of a file. It should be UTF-8 and mostly is, but vocabularies have tokens that are pieces of characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text<'a>(&'a [u8]);

impl<'a> Text<'a> {
    /// A string of these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The bytes as they are in the file.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// The string, or where it stops being UTF-8.
    pub fn to_str(self) -> Result<&'a str, Utf8Error> {
        std::str::from_utf8(self.0)
    }

    /// The string with `U+FFFD` wherever it is not UTF-8.
    pub fn to_string_lossy(self) -> Cow<'a, str> {
        String::from_utf8_lossy(self.0)
    }
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_string_lossy(), f)
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.to_string_lossy(), f)
    }
}

/// A metadata value. Strings and arrays are borrowed from the file.
#[allow(missing_docs)] // the names are their meaning
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(Text<'a>),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> Value<'a> {
    /// The type.
    pub fn ty(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// The number, if this is an integer of any width. Booleans are not integers.
    pub fn as_integer(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(x) => x.into(),
            Self::I8(x) => x.into(),
            Self::U16(x) => x.into(),
            Self::I16(x) => x.into(),
            Self::U32(x) => x.into(),
            Self::I32(x) => x.into(),
            Self::U64(x) => x.into(),
            Self::I64(x) => x.into(),
            _ => return None,
        })
    }

    /// The value as `T`, or `None` if it is of another kind or would lose something.
    pub fn to<T: FromValue<'a>>(self) -> Option<T> {
        T::from_value(self)
    }

    /// What this is, for an error message: type and value, of an array type and length.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::String(text) if text.to_str().is_err() => "string that is not UTF-8".to_owned(),
            Self::String(text) => {
                let text = text.to_string_lossy();
                let short: String = text.chars().take(40).collect();
                format!("string {short:?}{}", if short.len() < text.len() { "…" } else { "" })
            }
            Self::Array(array) => format!("array of {} {}", array.len(), array.element_type()),
            scalar => format!("{} {scalar}", scalar.ty()),
        }
    }

    /// A number or boolean from its bytes, of which there must be as many as the type is wide.
    pub(crate) fn scalar(ty: ValueType, bytes: &[u8]) -> Option<Value<'static>> {
        fn fixed<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
            bytes.try_into().ok()
        }
        Some(match ty {
            ValueType::U8 => Value::U8(u8::from_le_bytes(fixed(bytes)?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(fixed(bytes)?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(fixed(bytes)?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(fixed(bytes)?)),
            ValueType::U32 => Value::U32(u32::from_le_bytes(fixed(bytes)?)),
            ValueType::I32 => Value::I32(i32::from_le_bytes(fixed(bytes)?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(fixed(bytes)?)),
            ValueType::Bool => Value::Bool(u8::from_le_bytes(fixed(bytes)?) != 0),
            ValueType::U64 => Value::U64(u64::from_le_bytes(fixed(bytes)?)),
            ValueType::I64 => Value::I64(i64::from_le_bytes(fixed(bytes)?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(fixed(bytes)?)),
            ValueType::String | ValueType::Array => return None,
        })
    }
}

impl fmt::Display for Value<'_> {
    /// Numbers, booleans and strings as they are; of an array the first elements and how many there are.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U8(x) => x.fmt(f),
            Self::I8(x) => x.fmt(f),
            Self::U16(x) => x.fmt(f),
            Self::I16(x) => x.fmt(f),
            Self::U32(x) => x.fmt(f),
            Self::I32(x) => x.fmt(f),
            Self::F32(x) => x.fmt(f),
            Self::Bool(x) => x.fmt(f),
            Self::String(x) => x.fmt(f),
            Self::Array(x) => x.fmt(f),
            Self::U64(x) => x.fmt(f),
            Self::I64(x) => x.fmt(f),
            Self::F64(x) => x.fmt(f),
        }
    }
}

/// An array of a file: its elements are decoded when they are asked for.
#[derive(Clone, Copy)]
pub struct Array<'a> {
    pub(crate) element: ValueType,
    pub(crate) len: usize,
    /// The elements as they are in the file.
    pub(crate) bytes: &'a [u8],
    /// For strings: where in `bytes` each begins (with its length field), and where the last one ends.
    pub(crate) starts: &'a [usize],
}

/// Bytes of the length field before a string.
pub(crate) const LEN_BYTES: usize = 8;

impl<'a> Array<'a> {
    /// The type of the elements. Never [`ValueType::Array`]: nested arrays are refused when a file is opened.
    pub fn element_type(&self) -> ValueType {
        self.element
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Element `index`, or `None` past the end.
    pub fn get(&self, index: usize) -> Option<Value<'a>> {
        match self.element.width() {
            Some(width) => {
                let start = index.checked_mul(width)?;
                Value::scalar(self.element, self.bytes.get(start..start.checked_add(width)?)?)
            }
            None => {
                let start = self.starts.get(index)?.checked_add(LEN_BYTES)?;
                Some(Value::String(Text(self.bytes.get(start..*self.starts.get(index + 1)?)?)))
            }
        }
    }

    /// The elements in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Value<'a>> + DoubleEndedIterator + use<'a> {
        let array = *self;
        // Every index below `len` has an element: checked when the file was opened.
        (0..self.len).map(move |i| array.get(i).unwrap_or(Value::Bool(false)))
    }

    /// The elements as `T`, or `None` if there is one that would lose something.
    pub fn to_vec<T: FromValue<'a>>(&self) -> Option<Vec<T>> {
        self.iter().map(T::from_value).collect()
    }

    /// The strings in order, or `None` if this is an array of something else.
    pub fn texts(&self) -> Option<impl ExactSizeIterator<Item = Text<'a>> + DoubleEndedIterator + use<'a>> {
        let text = |value| if let Value::String(text) = value { text } else { Text(&[]) };
        (self.element == ValueType::String).then(|| self.iter().map(text))
    }
}

impl PartialEq for Array<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.element == other.element && self.len == other.len && self.bytes == other.bytes
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{self}", self.element)
    }
}

impl fmt::Display for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 6;
        f.write_str("[")?;
        for (i, value) in self.iter().take(SHOWN).enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            match value {
                Value::String(text) => write!(f, "{comma}{text:?}")?,
                value => write!(f, "{comma}{value}")?,
            }
        }
        if self.len > SHOWN { write!(f, ", … {} in all]", self.len) } else { f.write_str("]") }
    }
}

/// Types that a [`Value`] converts to, as long as nothing is lost.
///
/// Integers convert to any integer type that can hold them, and to floats that hold them exactly. `f64` is rounded to `f32`.
/// Arrays convert to a `Vec` if each element does. Nothing else converts: no booleans to numbers, no numbers to strings.
pub trait FromValue<'a>: Sized {
    /// The value as this type, or `None`.
    fn from_value(value: Value<'a>) -> Option<Self>;

    /// What this type is called in error messages.
    fn expected() -> Cow<'static, str>;
}

macro_rules! integers {
    ($($ty:ident)*) => {$(
        impl FromValue<'_> for $ty {
            fn from_value(value: Value<'_>) -> Option<Self> {
                value.as_integer()?.try_into().ok()
            }

            fn expected() -> Cow<'static, str> {
                Cow::Borrowed(stringify!($ty))
            }
        }
    )*};
}
integers!(u8 i8 u16 i16 u32 i32 u64 i64 usize);

macro_rules! others {
    ($($ty:ty, $name:literal, $value:ident => $convert:expr;)*) => {$(
        impl<'a> FromValue<'a> for $ty {
            fn from_value($value: Value<'a>) -> Option<Self> {
                $convert
            }

            fn expected() -> Cow<'static, str> {
                Cow::Borrowed($name)
            }
        }
    )*};
}
others! {
    f32, "f32", value => match value {
        Value::F32(x) => Some(x),
        Value::F64(x) => Some(x as f32).filter(|y| y.is_finite() || !x.is_finite()),
        other => other.as_integer().and_then(|n| Some(n as f32).filter(|&x| x as i128 == n)),
    };
    f64, "f64", value => match value {
        Value::F32(x) => Some(x.into()),
        Value::F64(x) => Some(x),
        other => other.as_integer().and_then(|n| Some(n as f64).filter(|&x| x as i128 == n)),
    };
    bool, "bool", value => if let Value::Bool(x) = value { Some(x) } else { None };
    Text<'a>, "string", value => if let Value::String(x) = value { Some(x) } else { None };
    &'a str, "UTF-8 string", value => if let Value::String(x) = value { x.to_str().ok() } else { None };
    String, "UTF-8 string", value => <&str>::from_value(value).map(str::to_owned);
    Array<'a>, "array", value => if let Value::Array(x) = value { Some(x) } else { None };
    Value<'a>, "value", value => Some(value);
}

impl<'a, T: FromValue<'a>> FromValue<'a> for Vec<T> {
    fn from_value(value: Value<'a>) -> Option<Self> {
        Array::from_value(value)?.to_vec()
    }

    fn expected() -> Cow<'static, str> {
        Cow::Owned(format!("array of {}", T::expected()))
    }
}
