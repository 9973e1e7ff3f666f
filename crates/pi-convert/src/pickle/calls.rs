//! What a pickle may name and call: two functions, which are only written down, and storages outside the pickle.

use super::{
    Global, Id, Number, Storage, Tensor, Value,
    machine::{Machine, Step},
};

impl Machine<'_> {
    pub(super) fn global(&mut self, module: &str, name: &str) -> Step {
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
    pub(super) fn call(&mut self) -> Step {
        let arguments = self.pop()?;
        let function = self.pop()?;
        let Value::Tuple(arguments) = self.get(arguments)? else {
            return Err("a call without a tuple of arguments".to_owned());
        };
        let value = match self.get(function)? {
            Value::Global(Global::OrderedDict) if arguments.is_empty() => Value::Dict(Vec::new()),
            Value::Global(Global::OrderedDict) => return Err("an ordered dict with arguments".to_owned()),
            Value::Global(Global::RebuildTensor) => Value::Tensor(self.tensor(arguments)?),
            other => return Err(format!("a call of {}, which is not allowed", other.kind())),
        };
        self.push(value)
    }

    /// State dicts carry attributes that say nothing about the tensors; anything else has none.
    pub(super) fn build(&mut self) -> Step {
        let _state = self.pop()?;
        match self.top()? {
            Value::Dict(_) => Ok(()),
            other => Err(format!("it sets attributes of {}, which is not allowed", other.kind())),
        }
    }

    /// `('storage', torch.FloatStorage, key, device, count)`.
    pub(super) fn persistent(&mut self) -> Step {
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
            other => Err(format!("a shape that is {}", other.kind())),
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
            ref other => Err(format!("a size that is {}", other.kind())),
        }
    }
}
