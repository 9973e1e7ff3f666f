//! Where weights come from.

use crate::{Error, Result};
use pi_core::{Matrix, QuantType, SharedBytes};
use pi_gguf::{File, Kind, Metadata};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Named tensors and metadata of a model. Implemented for [`pi_gguf::File`].
pub trait WeightSource: Send + Sync {
    /// The model's keys and values.
    fn metadata(&self) -> &Metadata;
    /// Whether the file carries neuron predictors (PowerInfer's format).
    fn kind(&self) -> Kind;
    /// The tensor `name` as rows, or `None` if there is none. A vector is one row.
    ///
    /// # Errors
    /// If the tensor exists but cannot be used as a matrix.
    fn matrix(&self, name: &str) -> Result<Option<Matrix>>;
}

impl WeightSource for File {
    fn metadata(&self) -> &Metadata {
        File::metadata(self)
    }

    fn kind(&self) -> Kind {
        File::kind(self)
    }

    fn matrix(&self, name: &str) -> Result<Option<Matrix>> {
        let Some(tensor) = self.tensor(name) else { return Ok(None) };
        let error =
            |message: String| Error::Tensor { path: self.path().display().to_string(), tensor: name.into(), message };
        let ty = tensor
            .quant()
            .ok_or_else(|| error(format!("type {} is not supported (supported: {})", tensor.ty(), known_types())))?;
        if tensor.dims().len() > 2 {
            return Err(error(format!("expected at most 2 dimensions, got {}", tensor.dims().len())));
        }
        let bytes = SharedBytes::reclaimable(tensor.owner().clone(), tensor.range())
            .ok_or_else(|| error("its bytes are not within the file".into()))?;
        Ok(Some(Matrix::new(name, ty, tensor.rows(), tensor.cols(), bytes)?))
    }
}

fn known_types() -> String {
    QuantType::ALL.map(QuantType::name).join(", ")
}

/// Passes on what a source has, and remembers it.
pub(crate) struct Keeping<'a> {
    source: &'a dyn WeightSource,
    seen: Mutex<HashMap<String, Matrix>>,
}

impl<'a> Keeping<'a> {
    pub(crate) fn new(source: &'a dyn WeightSource) -> Self {
        Self { source, seen: Mutex::default() }
    }

    /// What was asked for, in reach without the source. Bytes are shared with it.
    pub(crate) fn kept(self) -> Kept {
        let tensors = self.seen.into_inner().unwrap_or_else(PoisonError::into_inner);
        Kept { metadata: self.source.metadata().clone(), kind: self.source.kind(), tensors }
    }
}

impl WeightSource for Keeping<'_> {
    fn metadata(&self) -> &Metadata {
        self.source.metadata()
    }

    fn kind(&self) -> Kind {
        self.source.kind()
    }

    fn matrix(&self, name: &str) -> Result<Option<Matrix>> {
        let found = self.source.matrix(name)?;
        if let Some(m) = &found {
            self.seen.lock().unwrap_or_else(PoisonError::into_inner).insert(name.into(), m.clone());
        }
        Ok(found)
    }
}

/// The tensors of a model that was loaded, to load it again.
pub(crate) struct Kept {
    metadata: Metadata,
    kind: Kind,
    tensors: HashMap<String, Matrix>,
}

impl WeightSource for Kept {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn kind(&self) -> Kind {
        self.kind
    }

    fn matrix(&self, name: &str) -> Result<Option<Matrix>> {
        Ok(self.tensors.get(name).cloned())
    }
}

/// Reading conveniences over a [`WeightSource`].
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    pub source: &'a dyn WeightSource,
    /// Look for numbers that are not finite.
    pub check: bool,
}

impl Reader<'_> {
    pub(crate) fn path(&self) -> String {
        self.source.metadata().path().display().to_string()
    }

    /// A tensor, if it is there.
    pub(crate) fn find(&self, name: &str) -> Result<Option<Matrix>> {
        let found = self.source.matrix(name)?;
        if let Some(m) = found.as_ref().filter(|_| self.check) {
            self.finite(m)?;
        }
        Ok(found)
    }

    /// A tensor that must be there.
    pub(crate) fn matrix(&self, name: &str) -> Result<Matrix> {
        self.find(name)?.ok_or_else(|| {
            Error::Gguf(pi_gguf::Error::MissingTensor {
                path: self.source.metadata().path().into(),
                tensor: name.into(),
            })
        })
    }

    /// A vector of `len` numbers, if it is there.
    pub(crate) fn vector(&self, name: &str, len: usize) -> Result<Option<Arc<[f32]>>> {
        let Some(m) = self.find(name)? else { return Ok(None) };
        m.expect_shape(1, len)?;
        Ok(Some(m.decode().into()))
    }

    fn finite(&self, m: &Matrix) -> Result<()> {
        let mut row = vec![0.0f32; m.cols()];
        for i in 0..m.rows() {
            (m.ty().info().decode)(m.view().row(i), &mut row);
            if let Some(k) = row.iter().position(|v| !v.is_finite()) {
                return Err(Error::Tensor {
                    path: self.path(),
                    tensor: m.name().into(),
                    message: format!("expected finite numbers, got {} at row {i}, column {k}", row[k]),
                });
            }
        }
        Ok(())
    }
}
